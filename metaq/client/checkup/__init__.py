"""Checks a cluster: addresses, registrations, clocks and disks. The results are findings that a person can read."""
