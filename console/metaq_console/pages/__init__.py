"""The pages that a browser shows: screens, texts, decoders, templates and static files."""
