"""Moves a message that waits in one topic to the topic it is for, once, whatever crashes between."""
