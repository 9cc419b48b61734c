"""Who serves which partition: from a fixed list of brokers, or from ZooKeeper."""
