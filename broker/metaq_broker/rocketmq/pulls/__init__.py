"""Pulls of RocketMQ's clients, their filters, and pulls that wait."""
