"""Sends of RocketMQ's clients: single messages and batches become frames in the log."""
