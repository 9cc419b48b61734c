"""Screens: each is a function of a visit, which returns the answer to its request."""
