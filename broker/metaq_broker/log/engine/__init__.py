"""The broker's core: puts, reads and lookups on the partitions."""
