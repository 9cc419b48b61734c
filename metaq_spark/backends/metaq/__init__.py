"""The connector's access to MetaQ brokers."""
