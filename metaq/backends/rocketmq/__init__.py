"""A client of RocketMQ's servers over the remoting protocol. Import from the modules; nothing is loaded here."""
