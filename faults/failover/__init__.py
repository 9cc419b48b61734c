"""Failover of a pair of real brokers: kills, freezes and cuts while clients of every kind send, and what was lost."""
