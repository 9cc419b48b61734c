"""Fuzz of the broker's port: valid, altered, cut and invalid commands, while one honest client must be served."""
