"""How far a query is behind: in bytes from its progress alone, in messages and seconds by asking the brokers.

Import from the modules; nothing is loaded here. ``listener`` is the one that a query's owner wants.
"""
