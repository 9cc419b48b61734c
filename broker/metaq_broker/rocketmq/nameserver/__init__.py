"""RocketMQ's name server: which brokers exist, and which queues of which topics they have. See docs/name-server.md."""
