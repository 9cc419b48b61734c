"""RocketMQ's name servers and brokers as the connector asks, reads and writes them."""
