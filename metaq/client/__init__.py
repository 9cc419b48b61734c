"""The blocking client: connections, pools, reading and writing. Import from the modules; nothing is loaded here."""
