"""Access to the disk, and small files that are read completely or not at all."""
