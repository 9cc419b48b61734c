"""Consumer groups: assignment of partitions, positions, and rejected messages."""
