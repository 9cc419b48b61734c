"""Seeded histories of a pair in one process: the core that the broker runs, with everything around it in memory.

``python -m faults.simulation`` runs them. Each history has two or three members, a ZooKeeper, a network, disks, clocks
and clients, and a number of accidents; all of it follows from the seed. See docs/testing.md.
"""
