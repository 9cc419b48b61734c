"""A batch writer with its own thread, so that the broker works while the task waits for its next rows.

Batches of a queue are sent one after the other, each after the response to the previous one. The thread processes
responses while Spark produces the next rows; otherwise the broker would be idle, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from metaq.backends.rocketmq.batch_writer import PENDING_BYTES_MAX, BatchWriter

Send = Callable[[BatchWriter], object]
"""One call of ``write`` or ``send``."""


SEND_BYTES_MIN: Final = 256
"""A send counts as at least this many bytes: bodies may be empty, and what waits takes memory."""


class BackgroundWriter:
    """Runs ``writer`` in a thread, which closes it at the end. At most ``bytes_max`` bytes are unacknowledged."""

    def __init__(self, writer: BatchWriter, bytes_max: int = PENDING_BYTES_MAX) -> None:
        self._writer, self._bytes_max = writer, bytes_max
        self._changed = threading.Condition()
        self._sends: deque[tuple[Send, int]] = deque()
        self._queued_bytes = 0
        self._ended = self._given_up = False
        self._failure: BaseException | None = None
        self._thread: Final = threading.Thread(target=self._run, name="metaq-sink", daemon=True)
        self._thread.start()

    def put(self, send: Send, byte_count: int) -> None:
        """Queue a call of ``send``; wait while too much is unacknowledged.

        Raises:
            SendFailed, ValueError: Raised by this or an older ``send``.
        """
        byte_count = max(byte_count, SEND_BYTES_MIN)
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._has_space(byte_count))
            self._check()
            self._sends.append((send, byte_count))
            self._queued_bytes += byte_count
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until everything is stored. Raises as ``put``."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        self._check()

    def give_up(self) -> None:
        """Stop sending. The thread ends with the response that it waits for or the next error."""
        self._writer.abandon()
        with self._changed:
            self._ended = self._given_up = True
            self._sends.clear()
            self._changed.notify_all()

    def _has_space(self, byte_count: int) -> bool:
        pending = self._queued_bytes + self._writer.pending_bytes
        return not pending or pending + byte_count <= self._bytes_max

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (step := self._next()) is not None:
                step(self._writer)
        except BaseException as error:  # raised in the task, by the next call
            self._failure = error
        finally:
            self._writer.close()
            with self._changed:
                self._changed.notify_all()

    def _next(self) -> Send | None:
        """Return the next send; ``None`` at the end. Without one, wait for a response."""
        with self._changed:
            self._changed.notify_all()  # the step before may have made space
            self._changed.wait_for(lambda: self._sends or self._ended or self._writer.is_pending)
            if self._sends:
                send, byte_count = self._sends.popleft()
                self._queued_bytes -= byte_count
                return send
            if self._writer.is_pending and not self._given_up:
                return BatchWriter.collect
            return None
