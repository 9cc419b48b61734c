"""Exactly-once when brokers are restored from older copies: every gap is refused, and closed as the refusal says.

``python -m faults.put_back`` runs it. See docs/testing.md.
"""
