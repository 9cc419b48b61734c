"""Stored bytes: a message's frame, id and checksum. No input or output."""
