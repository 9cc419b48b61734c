"""Copies topics from one cluster to another, MetaQ or RocketMQ, in either direction, at least once."""
