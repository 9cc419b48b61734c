"""What half messages need of the log, of the producers, and of the form of messages. A frontend implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.half_messages.records import Note
from metaq_broker.rocketmq.moves.log import Queue

M = TypeVar("M")


class StoredHalf(NamedTuple, Generic[M]):
    """A half message as it is stored.

    ``message`` is what a commit appends to ``target``; no ``target``: nobody can tell where it is to go. ``given_up``
    and ``given_up_to``: the same if nobody decides. ``patience_ms``: how long its producer wants not to be asked.
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
    """The topic of half messages and that of notes, one queue each."""

    def fault(self) -> Refusal | None:
        """Return why one of the queues cannot be read now, ``None`` if they can."""

    def halves(self, first: int, count: int) -> tuple[Sequence[StoredHalf[M]], int] | Refusal:
        """Return at most ``count`` half messages from an ordinal on, and the ordinal to go on from."""

    def notes(self, first: int) -> tuple[Sequence[Note], int] | Refusal:
        """Return some notes from an ordinal on, and the ordinal to go on from: ``first`` if there are no more."""

    def ends(self) -> tuple[int, int]:
        """Return the ordinals behind the last half message and the last note."""

    def renumbered(self) -> tuple[int | None, int | None]:
        """Return the first ordinals of half messages and of notes, each if the queue was numbered anew at this start.

        Positions from before then lead there, and notes are about half messages by their old numbers.
        """

    def append_note(self, kind: str, body: bytes, stored: Callable[[int | Refusal], None]) -> None:
        """Append a note; ``stored`` is called once, with its ordinal when it is durable."""

    def ask(self, half: StoredHalf[M], times: int) -> bool:
        """Ask a producer of the group about a half message, for the ``times``-th time; ``False``: there is none."""
