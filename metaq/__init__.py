"""MetaQ (Metamorphosis) seen from outside: its words, bytes, directory and client."""

__version__ = "0.1.0"
