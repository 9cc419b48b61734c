"""The interface of half messages to the log, the producers, and the form of messages. A front end implements it.

Notes about half messages are the only durable state beside the messages themselves. A note is the body of a message;
its *kind* is one letter, its text the ordinals of half messages, in decimal, with commas between. The kind is stored
beside the body, as a tag.

======== ===============================================================
ended    the messages are committed or rolled back, or were given up
asked    their producers were asked once more
======== ===============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.moves.log import Queue


@dataclass(frozen=True, slots=True)
class HalfMessageDecided:
    """The message is delivered (``commit``), or never will be; that is durable."""

    commit: bool


@dataclass(frozen=True, slots=True)
class HalfUnknown(Refusal):
    """There is no half message with this ordinal."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class HalfEnded(Refusal):
    """The half message was committed or rolled back before, or is being ended now. Nothing was done."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class GroupWrong(Refusal):
    """The half message is of another producer group."""

    group: str


@dataclass(frozen=True, slots=True)
class OriginWrong(Refusal):
    """The half message with this ordinal is stored at another place."""

    origin: int


@dataclass(frozen=True, slots=True)
class HalfKept(Refusal):
    """The decision cannot be stored now, because of ``reason``: it is in memory, and carried out once it can be.

    If the broker is killed before, the producer is asked. A later decision replaces this one.
    """

    commit: bool
    reason: Refusal


ENDED: Final = "d"
ASKED: Final = "c"
ORDINALS_MAX: Final = 1024
"""Ordinals in one note."""


class Note(NamedTuple):
    """A note at ``ordinal`` of its topic."""

    ordinal: int
    kind: str
    body: bytes

    @property
    def ordinals(self) -> list[int]:
        """The ordinals of its half messages; parts that are not numbers are ignored."""
        return [int(part) for part in self.body.split(b",") if part.isdigit()]


def note_body(ordinals: Sequence[int]) -> bytes:
    return b",".join(b"%d" % ordinal for ordinal in ordinals)


M = TypeVar("M")


class StoredHalf(NamedTuple, Generic[M]):
    """A half message as it is stored.

    A commit appends ``message`` to ``target``; without ``target`` it is unknown. ``given_up`` and ``given_up_to``: the
    same if it is never decided. ``patience_ms``: minimum age before its producer is asked.
    """

    ordinal: int
    origin: int
    group: str
    stored_ms: int
    patience_ms: int | None
    target: Queue | None
    message: M
    given_up_to: Queue
    given_up: M


class HalfLog(Protocol[M]):
    """The topics of half messages and of notes, one queue each."""

    def fault(self) -> Refusal | None:
        """Return why one of the queues cannot be read now, ``None`` if they can."""

    def halves(self, first: int, count: int) -> tuple[Sequence[StoredHalf[M]], int] | Refusal:
        """Return at most ``count`` half messages from an ordinal on, and the next ordinal."""

    def notes(self, first: int) -> tuple[Sequence[Note], int] | Refusal:
        """Return some notes from an ordinal on, and the next ordinal: ``first`` if there are no more."""

    def ends(self) -> tuple[int, int]:
        """Return the ordinals after the last half message and the last note."""

    def renumbered(self) -> tuple[int | None, int | None]:
        """Return the first ordinals of half messages and of notes, for each queue that was renumbered at this start.

        Earlier positions are reset to them, and notes contain the old numbers of half messages.
        """

    def append_note(self, kind: str, body: bytes, stored: Callable[[int | Refusal], None]) -> None:
        """Append a note; ``stored`` is called once, with its ordinal when it is durable."""

    def ask(self, half: StoredHalf[M], times: int) -> bool:
        """Ask a producer of the group about a half message, for the ``times``-th time; ``False``: there is none."""
