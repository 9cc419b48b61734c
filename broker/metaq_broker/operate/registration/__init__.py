"""How a broker registers itself and its topics in ZooKeeper, where clients look for brokers."""
