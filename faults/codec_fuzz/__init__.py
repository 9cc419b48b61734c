"""Fuzz of the code that reads what RocketMQ's peers send: frames, headers, bodies, records. No broker takes part."""
