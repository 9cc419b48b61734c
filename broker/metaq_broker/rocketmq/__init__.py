"""RocketMQ's server side: broker and name server on one port."""
