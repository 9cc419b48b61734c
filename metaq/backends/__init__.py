"""Conversations with one system each: sessions, reads, writes, transactions."""
