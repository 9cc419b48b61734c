"""Threads: the parts that all clients share."""
