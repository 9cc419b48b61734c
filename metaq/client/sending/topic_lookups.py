"""Looking up the brokers of a topic for ``submit``, which waits for a limited time only.

A look-up runs in its own thread, and all callers that need the topic wait for the same one. It continues when its
callers have stopped waiting, and its result serves later callers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from metaq.errors import TopicLookupTimeout
from metaq.net.forks import notify_after_fork


class TopicLookups:
    """Shared look-ups. ``max_wait_s``: most seconds that a caller waits. Thread-safe."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._begin()

    def _begin(self) -> None:
        """Start without look-ups; also in a child process, which has none of their threads."""
        notify_after_fork(self._begin)
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[None]] = {}

    def wait(self, topic: str, look_up: Callable[[str], object]) -> None:
        """Return when ``look_up(topic)`` has succeeded.

        Raises:
            TopicLookupTimeout: The look-up took longer than ``max_wait_s``.
            Exception: ``look_up`` raised it.
        """
        try:
            self.start(topic, look_up).result(self._max_wait_s)
        except TimeoutError:
            raise TopicLookupTimeout(topic, self._max_wait_s) from None

    async def wait_in_loop(self, topic: str, look_up: Callable[[str], object]) -> None:
        """Wait as ``wait`` does, in a task. Cancelling the task does not cancel the look-up for others."""
        found = asyncio.wrap_future(self.start(topic, look_up))
        # retrieve the exception even if no caller waits
        found.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait_for(asyncio.shield(found), self._max_wait_s)
        except TimeoutError:
            raise TopicLookupTimeout(topic, self._max_wait_s) from None

    def start(self, topic: str, look_up: Callable[[str], object]) -> Future[None]:
        """Call ``look_up(topic)`` in a thread, unless a look-up of the topic is under way; return its future."""
        with self._lock:
            if (future := self._under_way.get(topic)) is None:
                future = self._under_way[topic] = Future()
                future.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel it
                work = (topic, look_up, future)
                threading.Thread(target=self._run, args=work, name="metaq-topic", daemon=True).start()
        return future

    def _run(self, topic: str, look_up: Callable[[str], object], future: Future[None]) -> None:
        failure: BaseException | None = None
        try:
            look_up(topic)
        except BaseException as error:
            failure = error
        with self._lock:
            del self._under_way[topic]
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
