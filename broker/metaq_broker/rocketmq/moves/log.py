"""The interface of moves to the log and the state table. The front end that owns the form of messages implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from metaq.errors import MetaqError
from metaq_broker.log.engine.outcomes import Refusal

M_contra = TypeVar("M_contra", contravariant=True)
Stored = Callable[[Refusal | None], None]
"""Called once: ``None`` when the messages are durable, or why none of them is stored."""
Saved = Callable[[Exception | None], None]
"""Called once: ``None`` when the value is durable."""


class Queue(NamedTuple):
    """A partition, as messages are moved to it."""

    topic: str
    number: int


class Origins(NamedTuple):
    """``found``: the origins of the moved messages among some, which end before ``next_ordinal``."""

    found: Sequence[int]
    next_ordinal: int


class MoveLog(Protocol[M_contra]):
    """The log. A moved message contains its *origin*, the position of the waiting message (not 0)."""

    def append(self, queue: Queue, messages: Sequence[M_contra], stored: Stored) -> None:
        """Append messages as one unit: all of them or none.

        Refused messages are appended again. So a message that may become readable without a restart is not refused.
        """

    def end(self, queue: Queue) -> int:
        """Return the ordinal after the last readable message; 0 without a partition."""

    def origins(self, queue: Queue, first: int) -> Origins | Refusal:
        """Read some messages from ordinal ``first`` on; ``next_ordinal`` = ``first``: there are no more."""


class MoveTable(Protocol):
    """A durable table of small values."""

    def get(self, key: str) -> bytes | None: ...

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Return the keys that begin with ``prefix``, and their current values."""

    def put(self, key: str, value: bytes, on_durable: Saved | None = None) -> None:
        """Set a value; ``None``: it gets durable within about a second."""

    def delete(self, key: str, on_durable: Saved | None = None) -> None:
        """Remove a value."""

    def when_durable(self, on_durable: Saved) -> None:
        """Call back when all changes until now are durable."""


def save(state: MoveTable, key: str, value: bytes, saved: Saved | None = None) -> None:
    """Set a value; ``saved`` is called once, also when the table is full or closed."""
    try:
        state.put(key, value, saved)
    except (MetaqError, ValueError) as error:
        if saved is not None:
            saved(error)
