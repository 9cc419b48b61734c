"""The log: segments, index, group commit, recovery, retention, and the engine, its one door."""
