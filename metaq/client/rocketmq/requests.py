"""Requests of this program that wait for replies."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from metaq.backends.rocketmq.replies import PushedReply
from metaq.formats.rocketmq.properties import KEYS, TAGS, UNIQ_KEY

REPLY_S: Final = 3.0
"""Default time for the reply to a request, as in Java's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketReply:
    """The reply of a consumer. ``born_timestamp_ms`` (since 1970) is when the consumer sent it, ``born_host`` from
    where. ``properties`` has all properties.
    """

    message_id: str | None
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    born_timestamp_ms: int
    born_host: str
    data: bytes = field(repr=False)

    @classmethod
    def of(cls, pushed: PushedReply) -> RocketReply:
        """Return the reply as it was pushed."""
        return cls(
            message_id=pushed.properties.get(UNIQ_KEY),
            tag=pushed.properties.get(TAGS),
            keys=tuple(pushed.properties.get(KEYS, "").split()),
            properties=pushed.properties,
            born_timestamp_ms=pushed.born_timestamp,
            born_host=pushed.born_host,
            data=pushed.data,
        )


class WaitingRequests:
    """Requests that wait for replies, by correlation id. Thread-safe.

    A request is dropped with its future: a task may be cancelled while a thread still sends its request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: WeakValueDictionary[str, Future[RocketReply]] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, correlation_id: str) -> Future[RocketReply]:
        """Return the future of the reply to a request that is about to be sent."""
        future: Future[RocketReply] = Future()
        with self._lock:
            self._waiting[correlation_id] = future
        return future

    def remove(self, correlation_id: str) -> None:
        """Stop waiting."""
        with self._lock:
            self._waiting.pop(correlation_id, None)

    def take(self, pushed: PushedReply) -> None:
        """Settle the future of a reply's request; later replies to it are dropped."""
        with self._lock:
            future = self._waiting.pop(pushed.correlation_id or "", None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(RocketReply.of(pushed))


@dataclass(slots=True)
class SentRequest:
    """A request that was sent. The reply settles ``future``; ``deadline_s`` is on the monotonic clock."""

    topic: str
    message_id: str
    correlation_id: str
    timeout_s: float
    deadline_s: float
    future: Future[RocketReply]
