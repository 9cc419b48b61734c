"""The connector's access to each system."""
