"""Replicated streams: what all logs of a pair have in common, and the files that a member of a pair keeps."""
