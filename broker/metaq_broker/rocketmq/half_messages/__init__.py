"""Messages of transactions that nobody has decided about yet: they are stored, and not visible."""
