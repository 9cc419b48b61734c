"""Consumer groups of MetaQ's clients at this broker, for clusters without ZooKeeper."""
