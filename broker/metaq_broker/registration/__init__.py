"""How a broker tells ZooKeeper that it is there and what it offers, for clients that look for brokers there."""
