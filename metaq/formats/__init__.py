"""Bytes at rest: the frame of a message, its id, its checksum. No input or output."""
