"""Partitions: opening, recovery, appending, reading; the partitions of a data folder."""
