"""Copies of partitions on a second broker: the asynchronous slave, the synchronous pair, promotion.

Source: docs/replication.md.
"""
