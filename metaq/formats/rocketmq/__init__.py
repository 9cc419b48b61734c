"""RocketMQ's stored bytes: records, elements of a batch, properties, ids, hashes of tags, compressed bodies.

The layouts are described in docs/remoting-protocol.md.
"""
