"""Between RocketMQ's records and Arrow columns, in both directions, one pass over the bytes each way."""
