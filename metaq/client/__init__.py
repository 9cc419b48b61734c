"""The blocking client for programs: a producer and a consumer. Import from the modules; nothing is loaded here."""
