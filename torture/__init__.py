"""Torture of the broker: real processes, real kills, and a checker that finds what was lost.

``python -m torture`` runs it, ``python -m torture.fuzz`` throws bytes at the port. See docs/testing.md.
"""
