"""A client of MetaQ brokers over the text protocol. Import from the modules; nothing is loaded here."""
