"""Finds messages by their keys: an index beside the log, which can be made again from it."""
