"""Directories of brokers and partitions: from a fixed list of brokers, ZooKeeper, or name servers."""
