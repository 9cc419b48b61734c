"""What annotations of headers and bodies say about the wire: the size of a number, and names that are not the usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

I32 = Annotated[int, 32]
"""A signed number of 32 bits."""
I64 = Annotated[int, 64]
"""A signed number of 64 bits."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Other names of a field on the wire than its attribute has; ``short`` is that in sends of version 2."""

    name: str = ""
    short: str = ""


def camel_case(name: str) -> str:
    """Return the usual name on the wire: ``queue_id`` is ``queueId``."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def names_of(hint: Any) -> Wire:
    """Return the names that an annotation gives."""
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Wire)), Wire())


def bits_of(hint: Any) -> int:
    """Return the size of the number that an annotation means, 0 if it gives none."""
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, int)), 0)
