"""Exactly-once under kills: a real Spark query from topic to topic whose processes are killed at every step.

``python -m faults.exactly_once`` runs it. See docs/testing.md.
"""
