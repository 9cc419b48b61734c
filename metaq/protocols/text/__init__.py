"""MetaQ's text protocol: ``commands`` are the values, ``encode`` and ``decode`` the two directions, ``extensions`` what
this project adds. Bodies are frames: ``metaq.formats.frames``. The protocol itself is described in docs/protocol.md.
"""
