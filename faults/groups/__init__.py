"""Faults for consumers in groups: messages must not be lost, or repeated beyond a save period."""
