"""The door to the disk, and small files that are read back whole or not at all."""
