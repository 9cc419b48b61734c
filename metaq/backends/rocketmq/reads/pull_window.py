"""The pulls of one reader in flight: several at once, collected in the order of their offsets.

A broker returns 32 messages at most for a pull, and fewer when they are large, filtered, or not in memory. Offsets are
dense, so the next pulls are known before the first is answered::

    offset     position                              end of the range
    asked      ├── pull ──┼── pull ──┼── pull ──┤
    answered   ├────┤ gap

A short response leaves a gap, which is requested next; after two of them, later pulls ask for that number. A response
that covers more than requested, as with a filter, makes the pulls of that range superfluous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from metaq.backends.rocketmq.reads.pulls import Moved, NotYet, PulledQueue, PulledRecords, describe, read_outcome
from metaq.backends.rocketmq.session import Session
from metaq.protocols.remoting.command import RemotingCommand

_GROW_AFTER: Final = 16
"""Consecutive full responses after which a reader requests more at once again."""

_ANSWER_BYTES_START: Final = 256 << 10


class SentPull(NamedTuple):
    """A pull in flight, and its offsets; ``is_first``: everything before them was collected when it was sent."""

    opaque: int
    command: RemotingCommand
    offset: int
    messages: int
    is_first: bool


class RequestWindow:
    """Requests for messages over ``session``, which may change. ``position`` is the offset after the collected
    messages.

    ``make`` returns the request for messages from an offset on, up to a number. ``stride`` messages are requested at a
    time.
    """

    def __init__(
        self,
        make: Callable[[int, int], RemotingCommand],
        position: int,
        messages_max: int,
        in_flight: int,
        bytes_max: int,
        stride: int,
        answer_bytes: int,
    ) -> None:
        self._make, self.position = make, position
        self._messages_max, self._in_flight, self._bytes_max = messages_max, in_flight, bytes_max
        self._stride = stride
        self._answer_bytes = float(answer_bytes)
        self._asked: deque[SentPull] = deque()

    def ask(self, session: Session, end: int) -> None:
        """Send pulls: for the gap after a short response, and ahead when half of those in flight are answered."""
        planned: list[tuple[int, int]] = []
        ahead = self._asked[-1].offset + self._asked[-1].messages if self._asked else self.position
        if self._asked and (gap := self._asked[0].offset - self.position) > 0:
            planned.append((self.position, min(gap, self._messages_max)))
        has_gap = bool(planned)
        depth = max(1, min(self._in_flight, int(self._bytes_max / self._answer_bytes)))
        if len(self._asked) <= depth // 2:
            while len(self._asked) + len(planned) < depth and ahead < end:
                planned.append((ahead, min(self._stride, end - ahead)))
                ahead += planned[-1][1]
        if not planned:
            return
        commands = [self._make(offset, count) for offset, count in planned]
        opaques = session.post_all(commands, describe(commands[0]))
        is_first = not self._asked
        sent = [
            SentPull(opaque, command, offset, count, is_first and number == 0)
            for number, (opaque, command, (offset, count)) in enumerate(zip(opaques, commands, planned, strict=True))
        ]
        if has_gap:
            self._asked.appendleft(sent.pop(0))
        self._asked.extend(sent)

    def take(self, session: Session) -> tuple[SentPull, RemotingCommand]:
        """Wait for the response to the first request. Raises as ``Session.wait``."""
        first = self._asked[0]
        response = session.wait(first.opaque)
        self._asked.popleft()
        return first, response

    def advance(self, session: Session, position: int) -> None:
        """Everything below ``position`` was collected: drop pulls for earlier offsets."""
        self.position = position
        while self._asked and self._asked[0].offset < position:
            session.abandon(self._asked.popleft().opaque)

    def abandon(self, session: Session | None) -> None:
        """Drop all pulls in flight; ``None``: they ended with their session."""
        if session is not None:
            for asked in self._asked:
                session.abandon(asked.opaque)
        self._asked.clear()

    def note_bytes(self, byte_count: int) -> None:
        """Record the size of a response, to limit the number of requests in flight."""
        self._answer_bytes += (byte_count - self._answer_bytes) / 8


class PullWindow(RequestWindow):
    def __init__(self, queue: PulledQueue, position: int, messages_max: int, in_flight: int, bytes_max: int) -> None:
        super().__init__(self._pull, position, messages_max, in_flight, bytes_max, messages_max, _ANSWER_BYTES_START)
        self._queue = queue
        self._full_answers = 0

    def collect(self, session: Session) -> tuple[SentPull, PulledRecords | NotYet | Moved]:
        """Wait for the response to the first pull. Raises as ``read_outcome`` and ``Session.wait``."""
        first, response = self.take(session)
        outcome = read_outcome(session, first.command, response)
        if isinstance(outcome, PulledRecords):
            self._learn(first, outcome)
        return first, outcome

    def _pull(self, offset: int, count: int) -> RemotingCommand:
        # A filter drops most messages, so its pulls always ask for the maximum.
        return self._queue.pull(offset, count if self._queue.subscription.is_all else self._messages_max)

    def _learn(self, asked: SentPull, found: PulledRecords) -> None:
        if found.data:
            self.note_bytes(len(found.data))
        covered = found.next_offset - asked.offset
        if covered < asked.messages or not self._queue.subscription.is_all:
            self._stride, self._full_answers = max(1, covered), 0
        elif self._stride < self._messages_max:
            self._full_answers += 1
            if self._full_answers >= _GROW_AFTER:
                self._stride, self._full_answers = min(self._messages_max, 2 * self._stride), 0
