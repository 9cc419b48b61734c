"""Conversations with RocketMQ's brokers over the remoting protocol. Import from the modules; nothing is loaded here."""
