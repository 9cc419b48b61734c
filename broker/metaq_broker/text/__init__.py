"""MetaQ's text protocol in front of the engine."""
