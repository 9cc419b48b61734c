"""Bodies that are JSON: ``json_body`` tells how a dataclass becomes one, the other modules have the dataclasses."""
