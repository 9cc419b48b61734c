"""Sending in the background: each submitted message is a row of a batch.

One thread takes the submitted messages, sends them in batches, and settles them by the acknowledgements; messages that
are submitted meanwhile form the next batches. A message leaves the window when it is acknowledged or has failed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, Literal, TypeVar

from metaq.client.sending.batches import MessageBatch, OpenBatches, SubmitterLoop
from metaq.client.sending.topic_lookups import TopicLookups
from metaq.errors import WindowFull
from metaq.net.clock import Clock, lock_wait_s
from metaq.net.forks import notify_after_fork

M = TypeVar("M")
"""A message as a program passes it: ``Message``, ``RocketMessage``."""
P = TypeVar("P")
S = TypeVar("S")

OnOverflow = Literal["block", "raise"] | Callable[[str, M], object]
"""What ``submit`` does if the window is full: wait, raise, or call a function with topic and message."""

BATCH_BYTES_MAX: Final = 4 << 20
"""Limit on bytes that are sent at a time before their acknowledgements are awaited."""

WINDOW_BYTES: Final = 16 << 20
"""Default size of the window: submitted bytes that are not acknowledged."""

MAX_BLOCK_S: Final = 60.0
"""Default limit on the seconds that ``submit`` waits."""

MAX_BLOCK_S_MAX: Final = 86_400

_OVERHEAD_BYTES: Final = 64
_LOG: Final = logging.getLogger(__name__)


class Submissions(Generic[M, P, S]):
    """The window and its sending thread, which starts with the first message.

    ``linger_s``: how long a message waits for others to share a batch with. ``window_bytes``: limit on
    bytes that are not acknowledged; a longer message goes alone. ``max_block_s``: how long ``put`` waits for space at
    most, in seconds. A batch has ``messages_max`` and ``bytes_max`` at most.

    ``send`` stores batches of one topic and settles each of them, or raises. ``given`` converts a message back into the
    form in which the program passed it.

    Raises:
        ValueError: A number or ``on_overflow`` is outside its allowed range.
    """

    def __init__(
        self,
        send: Callable[[str, Sequence[MessageBatch[P, S]]], object],
        given: Callable[[P], M],
        clock: Clock,
        *,
        linger_s: float,
        window_bytes: int,
        on_overflow: OnOverflow[M],
        max_block_s: float,
        messages_max: int,
        bytes_max: int,
    ) -> None:
        if not 0 <= linger_s <= 60:
            raise ValueError(f"linger_s {linger_s!r}: expected seconds, 0..60")
        if window_bytes < 1:
            raise ValueError(f"window {window_bytes!r}: expected bytes above 0")
        if isinstance(on_overflow, str) and on_overflow not in ("block", "raise"):
            raise ValueError(f"on_overflow {on_overflow!r}: expected 'block', 'raise' or a function")
        if not 0 < max_block_s <= MAX_BLOCK_S_MAX:
            raise ValueError(f"max_block_s {max_block_s!r}: expected seconds above 0, up to a day")
        self._send, self._given, self._clock = send, given, clock
        self.max_block_s: Final = max_block_s
        self.lookups: Final = TopicLookups(max_block_s)
        self._linger_s, self.window_bytes, self._on_overflow = linger_s, window_bytes, on_overflow
        self._full_bytes = min(BATCH_BYTES_MAX, window_bytes)
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._begin()

    def _begin(self) -> None:
        self._gathering: OpenBatches[P, S] = OpenBatches(self._messages_max, self._bytes_max, self._clock.monotonic)
        self._lock = threading.Lock()
        self._due, self._settled = threading.Condition(self._lock), threading.Condition(self._lock)
        self._bytes = 0
        self._flushing = 0
        self._thread_waits = self._overflowed = self._closed = self._given_up = False
        self._thread: threading.Thread | None = None

    def put(self, topic: str, queue: Hashable, message: P, data_bytes: int) -> tuple[MessageBatch[P, S], int]:
        """Take a message; return its batch and its row there.

        Raises:
            WindowFull: The window is full, with ``on_overflow="raise"``, or had no space within ``max_block_s``.
            ValueError: The producer is closed.
        """
        byte_count = data_bytes + _OVERHEAD_BYTES
        with self._lock:
            if self._bytes + byte_count <= self.window_bytes or not self._bytes or self._wait_for_space(byte_count):
                self.check_open()
                taken = self._gathering.add(topic, queue, message, byte_count)
                self._bytes = byte_total = self._bytes + byte_count
                if self._thread_waits:
                    if byte_total == byte_count or byte_total >= self._full_bytes:
                        self._due.notify()  # later messages need no wake-up: the thread's timer is set
                elif self._thread is None:
                    self._start()
                return taken
        return self._refuse(topic, message)

    def check_open(self) -> None:
        """Raise ``ValueError`` if the producer is closed."""
        if self._closed:
            raise ValueError("the producer is closed")

    def _wait_for_space(self, byte_count: int) -> bool:
        """Wait for space for ``byte_count`` bytes if the policy is to wait; return whether there is space."""
        self._overflowed = True
        self._due.notify()  # do not linger: the window is full
        if self._on_overflow != "block":
            return False
        limit = self.window_bytes - byte_count
        return self._settled.wait_for(
            lambda: not self._bytes or self._bytes <= limit or self._closed, timeout=self.max_block_s
        )

    def _refuse(self, topic: str, message: P) -> tuple[MessageBatch[P, S], int]:
        """Raise, or pass the message to the overflow function; return a failed batch."""
        full = WindowFull(topic, self.window_bytes)
        if not callable(self._on_overflow):
            raise full
        self._on_overflow(topic, self._given(message))
        refused: MessageBatch[P, S] = MessageBatch(topic, None)
        refused.submitter_loop = self._gathering.submitter_loop
        refused.settle([None], full)
        return refused, 0

    def settle_in(self, submitter_loop: SubmitterLoop) -> None:
        """Notify ``submitter_loop`` whenever a batch that begins from now on is settled."""
        with self._lock:
            self._gathering.submitter_loop = submitter_loop
            self._gathering.close_all()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="metaq-producer", daemon=True)
        self._thread.start()
        atexit.register(self._close_forgotten)
        notify_after_fork(self._forked)

    def _forked(self) -> None:
        """In a child process: the parent sends the messages taken so far; the child starts with an empty window."""
        atexit.unregister(self._close_forgotten)
        submitter_loop = self._gathering.submitter_loop
        self._begin()
        self._gathering.submitter_loop = submitter_loop

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all submitted messages are settled; return ``False`` after ``timeout_s`` seconds."""
        with self._lock:
            self._flushing += 1
            self._due.notify()
            try:
                return self._settled.wait_for(lambda: not self._bytes, lock_wait_s(timeout_s))
            finally:
                self._flushing -= 1

    def close(self, timeout_s: float | None = None) -> bool:
        """Send the remaining messages and end the thread; return ``False`` after ``timeout_s`` seconds.

        After the timeout, unsent messages are dropped, and the end of the program does not wait for them either.
        """
        with self._lock:
            self._closed = True
            self._due.notify()
            self._settled.notify_all()
        if self._thread is None or self._given_up:
            return not self._given_up
        self._thread.join(lock_wait_s(timeout_s))
        atexit.unregister(self._close_forgotten)
        self._given_up = self._thread.is_alive()
        if self._given_up:
            _LOG.warning("a producer was closed with %d bytes that are not acknowledged", self._bytes)
        return not self._given_up

    def _close_forgotten(self) -> None:
        text = "a producer was never closed; use it, or its client, in a with block"
        warnings.warn(text, ResourceWarning, stacklevel=2)
        self.close()

    def _run(self) -> None:
        while batches := self._take():
            by_topic: dict[str, list[MessageBatch[P, S]]] = {}
            for batch in batches:
                by_topic.setdefault(batch.topic, []).append(batch)
            for topic, some in by_topic.items():
                self._send_some(topic, some)
                with self._lock:
                    # Counted again: Ctrl-C may interrupt between adding a message and its bytes.
                    left = (batch for batch in (*batches, *self._gathering.waiting) if batch.outcomes is None)
                    self._bytes = sum(batch.byte_count for batch in left)
                    self._settled.notify_all()

    def _take(self) -> list[MessageBatch[P, S]]:
        """Wait for the next batches; return an empty list when the producer is closed."""
        with self._lock:
            while not self._is_due():
                if self._closed and not self._gathering.waiting:
                    return []
                self._thread_waits = True
                self._due.wait(self._left_s() if self._gathering.waiting else None)
                self._thread_waits = False
            self._overflowed = False
            return self._gathering.take(BATCH_BYTES_MAX)

    def _is_due(self) -> bool:
        """Whether there is a batch and it should not linger any longer."""
        if not self._gathering.waiting:
            return False
        hurry = self._overflowed or self._flushing or self._closed
        return bool(hurry or self._bytes >= self._full_bytes or self._left_s() <= 0)

    def _left_s(self) -> float:
        return self._gathering.waiting[0].since_s + self._linger_s - self._clock.monotonic()

    def _send_some(self, topic: str, batches: Sequence[MessageBatch[P, S]]) -> None:
        for batch in batches:
            batch.begin()
        failure: Exception | None = None
        try:
            self._send(topic, [batch for batch in batches if batch.messages])
        except Exception as error:  # any error: settle the futures and keep the thread running
            failure = error
        for batch in batches:
            batch.settle([None] * len(batch.messages), failure)  # no effect on batches that are settled already
