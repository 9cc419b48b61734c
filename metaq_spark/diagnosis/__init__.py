"""Why a query does not move: evidence of its checkpoint, its progress and the brokers; rules; a verdict with advice.

Import from the modules; nothing is loaded here. Programs call ``diagnosis.diagnose``; a driver adds ``listener``.
"""
