"""MetaQ's own Java client, fetched by package name."""
