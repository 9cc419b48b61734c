"""JSON bodies: ``json_body`` converts dataclasses, which are in the other modules."""
