"""Fault injection for the broker: real processes, real kills, and a checker that finds lost messages.

``python -m faults`` runs it; ``python -m faults.fuzz`` sends arbitrary bytes to the port. See docs/testing.md.
"""
