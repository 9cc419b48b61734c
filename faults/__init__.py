"""Torture of the broker: real processes, real kills, and a checker that finds what was lost.

``python -m faults`` runs it, ``python -m faults.fuzz`` throws bytes at the port. See docs/testing.md.
"""
