"""Messages that are sent in the background: each has a future, none waits for a call of anybody else.

One thread takes what has been submitted, sends it in blocks, and settles the futures by the acknowledgements; what
comes meanwhile is the next batch. A message leaves the window when it is acknowledged or has failed, not before.
"""

from __future__ import annotations

import atexit
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Final, Generic, Literal, Protocol, TypeVar, cast

from metaq.errors import MetaqError, SendFailed, WindowFull
from metaq.net.clock import Clock

M = TypeVar("M")
"""A message as a program gives it: ``Message``, ``RocketMessage``."""
P = TypeVar("P")
"""What its producer makes of it, to be sent: a partition, or a row."""
S = TypeVar("S")
"""What an acknowledged message becomes: ``Sent``, ``RocketSent``."""
R = TypeVar("R", contravariant=True)

OnOverflow = Literal["block", "raise"] | Callable[[str, M], object]
"""What happens to a message that does not fit into the window: ``submit`` waits or raises, or a function gets it."""

BATCH_BYTES_MAX: Final = 4 << 20
"""Most bytes that are sent, and waited for, at a time."""

WINDOW_BYTES: Final = 16 << 20
"""Most bytes that were submitted and are not acknowledged, if the program does not say otherwise."""

INTERRUPTED_S: Final = 5.0
"""How long a producer that is left by Ctrl-C waits for what it has taken."""

_OVERHEAD_BYTES: Final = 64
_LOG: Final = logging.getLogger(__name__)


class Settled(Protocol[R]):
    """What the sending thread needs of a future."""

    def set_running_or_notify_cancel(self) -> bool: ...
    def set_result(self, result: R, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Submitted(Generic[M, P, S]):
    """A message on its way, what its producer made of it, its future, and what it counts in the window."""

    __slots__ = ("byte_count", "future", "message", "prepared", "topic")

    def __init__(self, topic: str, message: M, prepared: P, data_bytes: int, future: Settled[S]) -> None:
        self.topic, self.message, self.prepared, self.future = topic, message, prepared, future
        self.byte_count = data_bytes + _OVERHEAD_BYTES


class Submissions(Generic[M, P, S]):
    """The window and the thread behind it, which starts with the first message.

    ``linger_s``: how long a message waits for others to share a block with. ``window_bytes``: most bytes that
    are not acknowledged; a longer message goes alone.

    ``send`` stores messages of one topic and returns what each became, or raises ``SendFailed``.

    Raises:
        ValueError: A number or ``on_overflow`` is outside of what is allowed.
    """

    def __init__(
        self,
        send: Callable[[str, Sequence[Submitted[M, P, S]]], Sequence[S]],
        clock: Clock,
        *,
        linger_s: float,
        window_bytes: int,
        on_overflow: OnOverflow[M],
    ) -> None:
        if not 0 <= linger_s <= 60:
            raise ValueError(f"linger_s {linger_s!r}: expected seconds, 0..60")
        if window_bytes < 1:
            raise ValueError(f"window {window_bytes!r}: expected bytes above 0")
        if isinstance(on_overflow, str) and on_overflow not in ("block", "raise"):
            raise ValueError(f"on_overflow {on_overflow!r}: expected 'block', 'raise' or a function")
        self._send, self._clock = send, clock
        self._linger_s, self._window_bytes, self._on_overflow = linger_s, window_bytes, on_overflow
        self._full_bytes = min(BATCH_BYTES_MAX, window_bytes)
        self._changed = threading.Condition()
        self._waiting: list[Submitted[M, P, S]] = []
        self._first_s = 0.0
        self._bytes = 0
        self._flushing = 0
        self._closed = self._given_up = False
        self._thread: threading.Thread | None = None

    def put(self, one: Submitted[M, P, S]) -> None:
        """Take a message.

        Raises:
            WindowFull: It does not fit, with ``on_overflow="raise"``.
            ValueError: The producer is closed.
        """
        with self._changed:
            if not self._fits(one):
                if callable(self._on_overflow):
                    self._on_overflow(one.topic, one.message)
                    one.future.set_exception(WindowFull(one.topic, self._window_bytes))
                    return
                if self._on_overflow == "raise":
                    raise WindowFull(one.topic, self._window_bytes)
                self._changed.wait_for(lambda: self._fits(one) or self._closed)
            if self._closed:
                raise ValueError("the producer is closed")
            is_first = not self._waiting
            if is_first:
                self._first_s = self._clock.monotonic()
                self._start()
            self._waiting.append(one)
            self._bytes += one.byte_count
            if is_first or self._bytes >= self._full_bytes:  # else the thread wakes by itself when it is time
                self._changed.notify_all()

    def _fits(self, one: Submitted[M, P, S]) -> bool:
        return not self._bytes or self._bytes + one.byte_count <= self._window_bytes

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="metaq-producer", daemon=True)
            self._thread.start()
            atexit.register(self._close_forgotten)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was submitted is settled; return whether that was within ``timeout_s``."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._bytes, timeout_s)
            finally:
                self._flushing -= 1

    def close(self, timeout_s: float | None = None) -> bool:
        """Send what is left, and end the thread; return whether that was within ``timeout_s``.

        After that time it is given up: nobody waits for it again, not even when the program ends.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is None or self._given_up:
            return not self._given_up
        self._thread.join(timeout_s)
        atexit.unregister(self._close_forgotten)
        self._given_up = self._thread.is_alive()
        if self._given_up:
            _LOG.warning("a producer was left with %d bytes that are not acknowledged", self._bytes)
        return not self._given_up

    def _close_forgotten(self) -> None:
        text = "a producer was never closed; use it, or its client, in a with block"
        warnings.warn(text, ResourceWarning, stacklevel=2)
        self.close()

    def _run(self) -> None:
        while batch := self._take():
            by_topic: dict[str, list[Submitted[M, P, S]]] = {}
            for one in batch:
                by_topic.setdefault(one.topic, []).append(one)
            for topic, some in by_topic.items():
                self._send_some(topic, some)
            with self._changed:
                self._bytes -= sum(one.byte_count for one in batch)
                self._changed.notify_all()

    def _take(self) -> list[Submitted[M, P, S]]:
        """Wait for the next batch; none when the producer is closed."""
        with self._changed:
            while not self._is_due():
                if self._closed and not self._waiting:
                    return []
                left_s = self._first_s + self._linger_s - self._clock.monotonic() if self._waiting else None
                self._changed.wait(left_s)
            size = count = 0
            while count < len(self._waiting) and (not count or size < BATCH_BYTES_MAX):
                size += self._waiting[count].byte_count
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            return batch

    def _is_due(self) -> bool:
        """Whether there is a batch, and no reason to wait for more."""
        if not self._waiting:
            return False
        full = self._bytes >= self._full_bytes
        waited = self._clock.monotonic() - self._first_s >= self._linger_s
        return bool(waited or full or self._flushing or self._closed)

    def _send_some(self, topic: str, some: Sequence[Submitted[M, P, S]]) -> None:
        running = [one for one in some if one.future.set_running_or_notify_cancel()]
        if not running:
            return
        failure: Exception | None = None
        sent: Sequence[S | None]
        try:
            sent = self._send(topic, running)
        except SendFailed as error:
            sent, failure = cast("Sequence[S | None]", error.sent), error
        except Exception as error:  # whatever it is, the futures are settled, and the thread goes on
            sent, failure = [None] * len(running), error
        for one, result in zip(running, sent, strict=True):
            if result is None:
                one.future.set_exception(failure or MetaqError("not acknowledged"))
            else:
                one.future.set_result(result)


def leave_limit_s(kind: type[BaseException] | None) -> float | None:
    """Return how long a ``with`` block that ``kind`` leaves waits for what was submitted: for Ctrl-C not for long."""
    return None if kind is None or issubclass(kind, Exception) else INTERRUPTED_S
