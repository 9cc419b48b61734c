"""Clients of one system each: sessions, reads, writes, transactions."""
