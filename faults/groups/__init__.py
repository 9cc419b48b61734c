"""Faults for consumers in groups over ZooKeeper: messages must not be lost, or repeated beyond a save period."""
