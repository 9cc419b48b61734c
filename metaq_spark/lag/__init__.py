"""The lag of a query: in bytes from its progress alone, in messages and seconds by asking the brokers.

Import from the modules; nothing is loaded here. Applications use ``listener``.
"""
