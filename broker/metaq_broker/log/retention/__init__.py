"""Deletes or archives old segments."""
