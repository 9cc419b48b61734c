"""The replies of one connection, kept until they can be sent. No socket, no clock.

A slot is one of three: bytes that are ready; a ``PendingReply``, whose bytes depend on an fsync or a commit; a
question, which is answered when it is the next reply, so that a read after a put sees the result of the put, and asked
again while its answer is not complete. Replies after an unfinished slot wait. That is for protocols whose replies are
in the order of the requests. In other protocols requests have numbers: their replies, and requests by the broker, are
sent as soon as they are ready (``push``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from metaq_broker.log.partitions.reads import Slice


class FileReply(NamedTuple):
    """A reply whose body is sent from a file: first ``head``, then the slice."""

    head: bytes
    file: Slice


class SlowReply(NamedTuple):
    """A reply that took some time to make: other connections are served before the next one is made."""

    data: bytes


Output = tuple[bytes, FileReply | None, bool]
"""The next bytes to send: first the bytes, then the file. If both are empty, there is nothing to send now.

Whether making it took some time, or the quantum is over: then do no more in this quantum.
"""


QUESTIONS_MAX: Final = 64
"""Limit on waiting questions of one connection. Further ones wait as received bytes."""


def _nobody() -> None:
    pass


def never() -> bool:
    """Return ``False``: for callers without a time limit."""
    return False


Question = Callable[[], bytes | FileReply | SlowReply | None]
"""Makes an answer; ``None``: a part of it is made, and other connections are served before the next part."""


class PendingReply:
    """A slot for ``requests`` replies that are filled in later, with ``complete``."""

    __slots__ = ("_queue", "data", "requests")

    def __init__(self, queue: ReplyQueue, requests: int) -> None:
        self._queue = queue
        self.requests = requests
        self.data: bytes | None = None

    def complete(self, data: bytes) -> None:
        """Set the bytes of all its replies (empty for a request without reply)."""
        self.data = data
        self._queue.ready_bytes += len(data)
        self._queue.wake()

    def complete_all(self, replies: Sequence[bytes]) -> None:
        data = self.data = b"".join(replies)
        self._queue.ready_bytes += len(data)
        self._queue.wake()


class ReplyQueue:
    """``wake`` is called when a slot is completed, so that the owner calls ``take``."""

    __slots__ = ("_abandoned", "_pushed", "_slots", "ended", "full", "questions", "ready_bytes", "unanswered", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self._slots: deque[bytes | PendingReply | Question | None] | None = None  # made on demand
        self._pushed: list[bytes] | None = None
        self._abandoned = False
        self.unanswered = 0
        """Requests that have a slot here. A session adds requests that ``push`` will answer, and others that count."""
        self.questions = 0
        """Questions that are not answered yet."""
        self.full = False
        """Whether some questions must be answered before further requests are carried out."""
        self.ready_bytes = 0
        """Bytes of replies that are ready and not taken yet."""
        self.ended = False
        """Whether the end mark was taken: close the connection once everything is sent."""

    @property
    def waiting(self) -> bool:
        """Whether the next reply depends on the broker, not on the client."""
        first = self._slots[0] if self._slots else None
        return isinstance(first, PendingReply) and first.data is None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send now: no reply, or the next one depends on the broker."""
        return not self._pushed and (not self._slots or self.waiting)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send, now or later. Requests that ``push`` answers do not count."""
        return not self._slots and not self._pushed

    @property
    def settled(self) -> bool:
        """Whether every request has been answered."""
        return self.empty and not self.unanswered

    def push(self, data: bytes, answers: int = 0) -> None:
        """Send before queued replies: replies to ``answers`` expected requests, or requests by the server.

        Dropped if the connection is closed.
        """
        if self._abandoned:
            return
        if self._pushed is None:
            self._pushed = [data]
        else:
            self._pushed.append(data)
        self.unanswered -= answers
        self.ready_bytes += len(data)
        self.wake()

    def add(self, data: bytes) -> None:
        if (slots := self._slots) is None:
            slots = self._new_queue()
        slots.append(data)
        self.unanswered += 1
        self.ready_bytes += len(data)

    def pending(self, requests: int = 1) -> PendingReply:
        """Queue a slot that is completed later."""
        slot = PendingReply(self, requests)
        if (slots := self._slots) is None:
            slots = self._new_queue()
        slots.append(slot)
        self.unanswered += requests
        return slot

    def ask(self, question: Question) -> None:
        """Queue a question; it is called when all replies before it have been taken."""
        if (slots := self._slots) is None:
            slots = self._new_queue()
        slots.append(question)
        self.unanswered += 1
        self.questions += 1
        self.full = self.questions >= QUESTIONS_MAX

    def end(self) -> None:
        """Queue the end of the connection."""
        (self._new_queue() if self._slots is None else self._slots).append(None)

    def abandon(self) -> None:
        """Drop everything and call no callbacks: the connection is closed, and its memory must not wait for slots."""
        self._abandoned = True
        self.wake = _nobody
        self._slots = None
        self._pushed = None

    def _new_queue(self) -> deque[bytes | PendingReply | Question | None]:
        self._slots = deque()
        return self._slots

    def take(self, bytes_max: int, quantum_over: Callable[[], bool] = never) -> Output:
        """Return the next bytes to send, in order: about ``bytes_max`` bytes at most, up to and including one file.

        After ``quantum_over``, no further question is answered, but always at least one, if there are any.
        """
        pushed, self._pushed, slots = self._pushed, None, self._slots
        if not slots:
            ready = b"" if pushed is None else pushed[0] if len(pushed) == 1 else b"".join(pushed)
            self.ready_bytes -= len(ready)
            return ready, None, False
        parts = pushed or []
        size = sum(map(len, parts))
        self.ready_bytes -= size
        while slots and size < bytes_max and not self.ended:
            slot = slots[0]
            if slot is None:
                self.ended = True
                break
            if isinstance(slot, bytes | PendingReply):
                data, requests = (slot, 1) if isinstance(slot, bytes) else (slot.data, slot.requests)
                if data is None:
                    break
                self.unanswered -= requests
                self.ready_bytes -= len(data)
                slots.popleft()
                parts.append(data)
                size += len(data)
                continue
            answer = slot()
            if answer is None:
                return b"".join(parts), None, True
            self.unanswered -= 1
            self.questions -= 1
            self.full = self.questions >= QUESTIONS_MAX
            slots.popleft()
            if isinstance(answer, FileReply):
                return b"".join(parts), answer, False
            if isinstance(answer, SlowReply):
                return b"".join((*parts, answer.data)), None, True
            parts.append(answer)
            size += len(answer)
            if quantum_over():
                return b"".join(parts), None, True
        return b"".join(parts), None, False
