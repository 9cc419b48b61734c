"""HTTP access, a JSON API and pages for clusters of MetaQ and RocketMQ: a client of the brokers, in its own process."""
