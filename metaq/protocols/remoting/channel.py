"""The state of one remoting connection: which requests wait for a response, in both directions. No socket, no clock.

Either side of a connection may send requests. Each numbers its own (``opaque``), so the two number spaces are
independent: only the flag bit shows whether a command is a response, never its number.

::

    start ──────────▶ pending ── response ──▶ Response     the owner gets it
    (a number is                 deadline ──▶ Expired      a response after that is counted and dropped
     chosen here)                forget   ──▶              the same
                                 close    ──▶ Pending      nobody will answer any more

``T`` is the context that the caller attaches to a request: a future, a slot, a callback.

Requests and oneways in flight have separate limits. A request is in flight until it is answered, a oneway until its
bytes are passed to the system. Not thread-safe: to share a channel between threads, hold a lock around each call. Times
are seconds of one monotonic clock.

Source: the documents of RocketMQ's remoting module; docs/adr/0030-one-channel-for-both-sides.md.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from metaq.errors import TooManyInFlight
from metaq.protocols.remoting.command import RemotingCommand

T = TypeVar("T")

ONEWAY_BIT: Final = 2
_OPAQUE_MAX: Final = 0x7FFFFFFF
_STALE_DEADLINES_MAX: Final = 64
"""Deadlines of finished requests are removed when they exceed the pending ones by this number."""


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Limit on commands of each kind in flight: unanswered requests, unsent oneways. At least 1."""

    requests_max: int = 1024
    oneways_max: int = 1024

    def __post_init__(self) -> None:
        for name, value in (("requests_max", self.requests_max), ("oneways_max", self.oneways_max)):
            if value < 1:
                raise ValueError(f"{name}={value}: expected 1 or more")


DEFAULT_LIMITS: Final = ChannelLimits()


class InFlight:
    """Counts commands in flight up to ``limit``, and up to the limit of ``total``, which several counters may share."""

    def __init__(self, kind: str, limit: int, total: InFlight | None = None) -> None:
        self.kind, self.limit, self.count = kind, limit, 0
        self._total = total

    def take(self, peer: object) -> None:
        """Count one more.

        Raises:
            TooManyInFlight: The limit is reached; the error names ``peer``.
        """
        if self.count >= self.limit:
            raise TooManyInFlight(peer, self.kind, self.limit)
        if self._total is not None:
            self._total.take(peer)
        self.count += 1

    def give(self) -> None:
        """Count one less."""
        self.count -= 1
        if self._total is not None:
            self._total.give()


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """A request that waits for its response until ``deadline``."""

    request: RemotingCommand
    deadline: float
    owner: T


@dataclass(frozen=True, slots=True)
class ReceivedResponse(Generic[T]):
    """``command`` answers ``request``. A code other than 0 is not an error here."""

    owner: T
    request: RemotingCommand
    command: RemotingCommand


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request of the peer, which waits for a response unless ``command.is_oneway``."""

    command: RemotingCommand


@dataclass(frozen=True, slots=True)
class Expired(Generic[T]):
    """The deadline of ``request`` passed without a response."""

    owner: T
    request: RemotingCommand


class Channel(Generic[T]):
    """The requests of one connection. Errors name ``peer``. ``total`` counters may be shared with other channels."""

    def __init__(
        self,
        peer: object,
        limits: ChannelLimits = DEFAULT_LIMITS,
        *,
        total_requests: InFlight | None = None,
        total_oneways: InFlight | None = None,
    ) -> None:
        self._peer = peer
        self._requests = InFlight("request", limits.requests_max, total_requests)
        self._oneways = InFlight("oneway", limits.oneways_max, total_oneways)
        self._pending: dict[int, Pending[T]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._last_opaque = 0
        self.late_responses = 0
        """Unexpected responses: too late, repeated or never requested."""

    @property
    def in_flight(self) -> int:
        """Requests that wait for a response."""
        return len(self._pending)

    @property
    def oneways_in_flight(self) -> int:
        """Oneways that were started and not sent yet."""
        return self._oneways.count

    @property
    def next_deadline(self) -> float | None:
        """When the first pending request expires; ``None`` without any."""
        while self._deadlines and not self._waits(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def start(self, command: RemotingCommand, deadline: float, owner: T) -> RemotingCommand:
        """Return ``command`` in the form to send: with a number that no pending request has.

        Raises:
            TooManyInFlight: The limit of pending requests is reached.
        """
        self._requests.take(self._peer)
        request = replace(command, opaque=self._free_opaque(), flag=0)
        self._pending[request.opaque] = Pending(request, deadline, owner)
        heapq.heappush(self._deadlines, (deadline, request.opaque))
        return request

    def start_oneway(self, command: RemotingCommand) -> RemotingCommand:
        """Return ``command`` in the form to send; call ``oneway_sent`` when it was sent, or failed.

        Raises:
            TooManyInFlight: The limit of unsent oneways is reached.
        """
        self._oneways.take(self._peer)
        return replace(command, opaque=self._free_opaque(), flag=ONEWAY_BIT)

    def oneway_sent(self) -> None:
        """A oneway that was started is no longer in flight."""
        self._oneways.give()

    def received(self, command: RemotingCommand) -> ReceivedResponse[T] | ReceivedRequest | None:
        """Return the meaning of a command from the peer; ``None`` for an unexpected response."""
        if not command.is_response:
            return ReceivedRequest(command)
        pending = self._end(command.opaque)
        if pending is None:
            self.late_responses += 1
            return None
        return ReceivedResponse(pending.owner, pending.request, command)

    def forget(self, opaque: int) -> bool:
        """Stop waiting for a response; return whether the request was pending."""
        return self._end(opaque) is not None

    def expire(self, now: float) -> list[Expired[T]]:
        """Remove and return the requests whose deadline is at or before ``now``."""
        expired = []
        while (deadline := self.next_deadline) is not None and deadline <= now:
            pending = self._end(heapq.heappop(self._deadlines)[1])
            assert pending is not None  # ``next_deadline`` considers pending requests only
            expired.append(Expired(pending.owner, pending.request))
        return expired

    def close(self) -> list[Pending[T]]:
        """Remove and return all pending requests, which will not be answered."""
        ended = list(self._pending.values())
        for pending in ended:
            self._end(pending.request.opaque)
        self._deadlines.clear()
        return ended

    def _end(self, opaque: int) -> Pending[T] | None:
        pending = self._pending.pop(opaque, None)
        if pending is not None:
            self._requests.give()
            if len(self._deadlines) > 2 * len(self._pending) + _STALE_DEADLINES_MAX:
                self._deadlines = [(each.deadline, number) for number, each in self._pending.items()]
                heapq.heapify(self._deadlines)
        return pending

    def _waits(self, deadline: float, opaque: int) -> bool:
        pending = self._pending.get(opaque)
        return pending is not None and pending.deadline == deadline

    def _free_opaque(self) -> int:
        # The numbers wrap around after 2**31 requests; the number of a pending request is skipped.
        while True:
            self._last_opaque = self._last_opaque + 1 if self._last_opaque < _OPAQUE_MAX else 0
            if self._last_opaque not in self._pending:
                return self._last_opaque
