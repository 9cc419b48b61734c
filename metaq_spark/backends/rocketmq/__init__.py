"""The connector's access to RocketMQ's name servers and brokers."""
