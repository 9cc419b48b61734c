"""Group commit: when appended bytes are synced, by which thread or by the kernel, and which callbacks wait for it."""
