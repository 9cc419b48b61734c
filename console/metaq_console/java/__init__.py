"""The paths of MetaQ's own HTTP server, for programs that were written for it."""
