"""MetaQ brokers as the connector asks and reads them."""
