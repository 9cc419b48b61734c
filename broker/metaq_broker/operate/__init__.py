"""What operators see and do: configuration, control, fsck, monitoring, registration in ZooKeeper."""
