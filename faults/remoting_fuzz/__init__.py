"""Fuzz of RocketMQ's remoting protocol: the codec, the name server's port, and the client against faulty servers."""
