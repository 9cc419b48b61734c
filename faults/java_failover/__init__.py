"""Failover of a pair while Java's own clients send and consume: MetaQ over ZooKeeper, RocketMQ over name servers."""
