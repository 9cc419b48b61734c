"""Accounts of clients: who they are, and what they may do with topics and groups. No protocol is known here."""
