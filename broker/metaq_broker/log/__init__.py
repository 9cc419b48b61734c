"""The log: segments, indexes, group commit, recovery, retention, and the engine, the only way into it."""
