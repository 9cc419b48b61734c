"""Registers a broker and its topics in ZooKeeper, where clients find brokers."""
