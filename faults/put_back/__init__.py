"""Exactly once while brokers are put back to older copies: every gap is refused, and closed as the refusal says.

``python -m faults.put_back`` runs it. See docs/testing.md.
"""
