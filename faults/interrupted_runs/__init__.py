"""Interrupts consumers while their handlers run."""
