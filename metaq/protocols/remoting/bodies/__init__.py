"""Bodies that are JSON: ``json_body`` makes one of a dataclass, the other modules have the dataclasses."""
