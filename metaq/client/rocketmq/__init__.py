"""``RocketMQ``: a client of a cluster of RocketMQ brokers, with the method names of ``MetaQ``."""
