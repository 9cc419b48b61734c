"""Fuzz of the broker's port: valid, altered, cut and senseless commands, while one honest client must be served."""
