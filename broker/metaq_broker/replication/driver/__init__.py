"""A member of a pair in a running broker: what the core of ``replication/pair`` asks for is done here."""
