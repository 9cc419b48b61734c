"""How the connector asks and reads one system each."""
