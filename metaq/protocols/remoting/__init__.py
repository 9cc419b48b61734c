"""RocketMQ's remoting protocol: ``command`` is the value, ``frames`` its bytes, ``codes`` the numbers.

The protocol itself is described in docs/remoting-protocol.md.
"""
