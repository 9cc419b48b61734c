"""Exactly once under fire: a real Spark query from topic to topic whose processes are killed at every step.

``python -m faults.fire`` runs it. See docs/testing.md.
"""
