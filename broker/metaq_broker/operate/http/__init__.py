"""HTTP access: a process of its own that the broker starts, watches and stops."""
