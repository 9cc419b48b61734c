"""MetaQ's text protocol: ``commands`` are the values, ``encode`` and ``decode`` the two directions, ``frames`` what
bodies are made of, ``extensions`` what this project adds. The protocol itself is told in docs/protocol.md.
"""
