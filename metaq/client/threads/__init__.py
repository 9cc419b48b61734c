"""Threads and forks: the parts that all clients share."""
