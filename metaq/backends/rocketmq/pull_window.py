"""The pulls of one reader that are under way: several at once, collected in the order of their offsets.

A broker answers a pull with 32 messages at most, and with fewer when they are large, filtered, or not in memory.
Offsets are dense, so the next pulls are known before the first is answered::

    offset     position                              end of the range
    asked      ├── pull ──┼── pull ──┼── pull ──┤
    answered   ├────┤ gap

A short answer leaves a gap, which is asked for next; two of them teach how much a pull gives, and later ones ask for
that. An answer that goes further than was asked, as with a filter, makes the pulls that it covers superfluous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from metaq.backends.rocketmq.pulls import Found, Moved, NotYet, PulledQueue, describe, read_outcome
from metaq.backends.rocketmq.session import Session
from metaq.protocols.remoting.command import RemotingCommand

_GROW_AFTER: Final = 16
"""Full answers in a row after which a reader asks for more at once again."""

_ANSWER_BYTES_START: Final = 256 << 10


class Asked(NamedTuple):
    """A pull under way, and for which offsets; ``is_first``: all before them was collected when it was sent."""

    opaque: int
    command: RemotingCommand
    offset: int
    messages: int
    is_first: bool


class RequestWindow:
    """Requests for messages over ``session``, which may change. ``position`` is the offset behind what was collected.

    ``make`` gives the request for messages from an offset on, at most so many. ``stride`` are asked for at a time.
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
        self._asked: deque[Asked] = deque()

    def ask(self, session: Session, end: int) -> None:
        """Send pulls: for the gap that a short answer left, and when half of those under way are answered, ahead."""
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
            Asked(opaque, command, offset, count, is_first and number == 0)
            for number, (opaque, command, (offset, count)) in enumerate(zip(opaques, commands, planned, strict=True))
        ]
        if has_gap:
            self._asked.appendleft(sent.pop(0))
        self._asked.extend(sent)

    def take(self, session: Session) -> tuple[Asked, RemotingCommand]:
        """Wait for the answer to the first request. Raises as ``Session.wait``."""
        first = self._asked[0]
        response = session.wait(first.opaque)
        self._asked.popleft()
        return first, response

    def advance(self, session: Session, position: int) -> None:
        """All below ``position`` was collected: pulls for what lies before it are dropped."""
        self.position = position
        while self._asked and self._asked[0].offset < position:
            session.abandon(self._asked.popleft().opaque)

    def abandon(self, session: Session | None) -> None:
        """Drop all pulls under way; ``None``: they ended with their session."""
        if session is not None:
            for asked in self._asked:
                session.abandon(asked.opaque)
        self._asked.clear()

    def note_bytes(self, byte_count: int) -> None:
        """Take note of how many an answer had: so many are under way less for each."""
        self._answer_bytes += (byte_count - self._answer_bytes) / 8


class PullWindow(RequestWindow):
    """Pulls of ``queue``."""

    def __init__(self, queue: PulledQueue, position: int, messages_max: int, in_flight: int, bytes_max: int) -> None:
        super().__init__(self._pull, position, messages_max, in_flight, bytes_max, messages_max, _ANSWER_BYTES_START)
        self._queue = queue
        self._full_answers = 0

    def collect(self, session: Session) -> tuple[Asked, Found | NotYet | Moved]:
        """Wait for the answer to the first pull. Raises as ``read_outcome`` and ``Session.wait``."""
        first, response = self.take(session)
        outcome = read_outcome(session, first.command, response)
        if isinstance(outcome, Found):
            self._learn(first, outcome)
        return first, outcome

    def _pull(self, offset: int, count: int) -> RemotingCommand:
        # A filter leaves out most of what it looks at, so its pulls always ask for as many as there may be.
        return self._queue.pull(offset, count if self._queue.subscription.is_all else self._messages_max)

    def _learn(self, asked: Asked, found: Found) -> None:
        if found.data:
            self.note_bytes(len(found.data))
        covered = found.next_offset - asked.offset
        if covered < asked.messages or not self._queue.subscription.is_all:
            self._stride, self._full_answers = max(1, covered), 0
        elif self._stride < self._messages_max:
            self._full_answers += 1
            if self._full_answers >= _GROW_AFTER:
                self._stride, self._full_answers = min(self._messages_max, 2 * self._stride), 0
