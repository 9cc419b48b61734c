"""What closes what, and calls in threads: the parts that all clients share."""
