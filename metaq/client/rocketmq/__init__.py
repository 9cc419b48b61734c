"""``RocketMQ``: a program's way to a cluster of RocketMQ brokers, with the names of ``MetaQ``."""
