"""Interrupts consumers again and again while a handler of theirs runs."""
