"""Waiting messages, and the interface of their log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.moves.log import Queue

M = TypeVar("M")


class WaitingMessage(NamedTuple, Generic[M]):
    """A waiting message. ``origin`` is its position (see ``moves``); ``message`` will be appended to ``target``.

    ``due_ms`` is its delivery time, if it has one. ``target`` is ``None`` if it is unknown; the message is then
    dropped.
    """

    ordinal: int
    origin: int
    stored_ms: int
    due_ms: int
    target: Queue | None
    message: M
    size: int = 0
    """Bytes, about."""


class Read(NamedTuple, Generic[M]):
    """Messages in the order of their ordinals; the next one is ``next_ordinal`` or after it."""

    waiting: Sequence[WaitingMessage[M]]
    next_ordinal: int


class WaitingLog(Protocol[M]):
    """The queues of one topic, in which messages wait."""

    def read(self, queue: int, first: int, count: int) -> Read[M] | Refusal:
        """Return at most ``count`` messages from ordinal ``first`` on. ``first`` below the log start: from there."""

    def end(self, queue: int) -> int:
        """Return the ordinal after the last readable message of a queue."""

    def renumbered(self, queue: int) -> int | None:
        """Return the ordinal of the first message if a queue was renumbered at this start, else ``None``.

        Earlier positions are then reset to the first message, because their messages are unknown.
        """

    def fault(self, queue: int) -> Refusal | None:
        """Return why a queue that may have messages cannot be read now; ``None`` if it can, or has none."""
