"""Faults for consumers in groups over ZooKeeper: what they read is neither lost nor repeated beyond a save period."""
