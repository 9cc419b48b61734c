"""Objects of which each event loop has one."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self
from weakref import WeakKeyDictionary, proxy


class PerLoop:
    """Base of a class with one object for each event loop: ``of``. The objects live as long as their loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: asyncio.AbstractEventLoop = proxy(loop)  # weak, as its key in the table below

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Self:
        """Return the object of ``loop``, made on the first call."""
        known = _OBJECTS.setdefault(loop, {})
        found: Self | None = known.get(cls)
        if found is None:
            found = known[cls] = cls(loop)
        return found


_OBJECTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[type, Any]]] = WeakKeyDictionary()
