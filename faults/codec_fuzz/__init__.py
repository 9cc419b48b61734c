"""Fuzz of the decoders of RocketMQ's frames, headers, bodies and records, without a broker."""
