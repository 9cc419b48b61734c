"""Small durable tables beside the log: offsets, settings, positions."""
