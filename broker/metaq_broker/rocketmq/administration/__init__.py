"""What administrators ask about topics, groups and the running broker."""
