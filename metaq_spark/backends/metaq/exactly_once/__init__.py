"""Exactly-once delivery: a batch is one transaction over all its tasks and brokers.

``identity`` names branches and batches; ``participants`` are the brokers that take part; ``branches`` runs in the
tasks, ``coordinator`` in the driver. Source: docs/transactions.md, docs/adr/0007.
"""
