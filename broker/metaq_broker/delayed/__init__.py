"""Messages that wait for a time: behind others of the same delay, or for a moment of their own."""
