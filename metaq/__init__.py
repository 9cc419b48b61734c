"""MetaQ (Metamorphosis) seen from outside: its words, bytes, directory and client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.client.metaq import MetaQ

__all__ = ["MetaQ", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import ``MetaQ`` at its first use: brokers and executors import this package and never need it."""
    if name == "MetaQ":
        from metaq.client.metaq import MetaQ

        return MetaQ
    raise AttributeError(f"module 'metaq' has no attribute {name!r}")
