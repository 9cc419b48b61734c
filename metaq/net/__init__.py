"""Sockets, TLS, time and retries: the only modules of this package that open a connection or read a clock."""
