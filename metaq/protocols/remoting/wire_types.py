"""Annotations for headers and bodies: the size of a number, and unusual names on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

I32 = Annotated[int, 32]
"""A signed number of 32 bits."""
I64 = Annotated[int, 64]
"""A signed number of 64 bits."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Names of a field on the wire that differ from its attribute; ``short`` is used in sends of version 2."""

    name: str = ""
    short: str = ""


def camel_case(name: str) -> str:
    """Return the usual name on the wire: ``queue_id`` is ``queueId``."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def names_of(hint: Any) -> Wire:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Wire)), Wire())


def bits_of(hint: Any) -> int:
    """Return the bits of the number type in an annotation, 0 if there is none."""
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, int)), 0)
