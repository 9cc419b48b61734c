"""Connections of clients: accepting them, TLS, limits, and moving bytes."""
