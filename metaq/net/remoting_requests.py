"""Requests of servers to a client: processors by code, each on its own executor or on a shared one.

A processor returns the response, or ``None`` if there is none, or ``ResponseFirst`` if it has more to do then.
Requests with an unregistered code are answered with 3; if too many wait for an executor, with 2; if a processor fails,
with 1 and its error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.remoting_connection import RemotingConnection, refusal
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResponseFirst:
    """A response, and what is done once it is passed to the network, or cannot be."""

    response: RemotingCommand
    then: Callable[[], None]


Processor = Callable[[Address, RemotingCommand], RemotingCommand | ResponseFirst | None]
"""Handles a request of the server at an address."""

WAITING_MAX: Final = 1024
"""Limit on requests of servers that wait for an executor or are running, in total."""

COMMON_THREADS: Final = 4
"""Threads of the shared executor, created with the first request."""

REPLY_TIMEOUT_S: Final = 10.0


class ServerRequests:
    """The processors of one client. Thread-safe."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._processors: dict[int, tuple[Processor, Executor | None]] = {}
        self._lock = threading.Lock()
        self._common: ThreadPoolExecutor | None = None
        self._closed = False
        self._waiting = threading.BoundedSemaphore(waiting_max)
        self.refused = 0
        """Number of requests that were refused or dropped because too many waited."""

    def register(self, code: int, processor: Processor, executor: Executor | None = None) -> None:
        """Set the processor of requests with ``code``; it runs on ``executor`` or the shared one."""
        self._processors[int(code)] = (processor, executor)

    def arrived(self, connection: RemotingConnection[Any], command: RemotingCommand) -> None:
        """Schedule a request; returns at once."""
        processor, executor = self._processors.get(command.code, (None, None))
        if processor is None:
            _reply(connection, command, refusal(command))
        elif not self._waiting.acquire(blocking=False):
            self.refused += 1
            busy = command.reply(int(ResponseCode.SYSTEM_BUSY), remark="[OVERLOAD]the client has too many requests")
            _reply(connection, command, busy)
        else:
            self._submit(executor, processor, connection, command)

    def run(self, work: Callable[[], None]) -> bool:
        """Run other work on the shared executor; return whether it will run."""
        with self._lock:
            if self._closed:
                return False
            if self._common is None:
                self._common = ThreadPoolExecutor(COMMON_THREADS, thread_name_prefix="remoting")
            self._common.submit(work)
            return True

    def close(self) -> None:
        """Accept no more requests, and wait for running ones. Executors passed to ``register`` are not shut down."""
        with self._lock:
            self._closed, common = True, self._common
        if common is not None:
            common.shutdown(wait=True, cancel_futures=True)

    def _submit(
        self,
        executor: Executor | None,
        processor: Processor,
        connection: RemotingConnection[Any],
        command: RemotingCommand,
    ) -> None:
        def work() -> None:
            try:
                _carry_out(processor, connection, command)
            finally:
                self._waiting.release()

        try:
            accepted = self.run(work) if executor is None else bool(executor.submit(work))
        except RuntimeError:  # the executor was shut down
            accepted = False
        if not accepted:
            self._waiting.release()


def _carry_out(processor: Processor, connection: RemotingConnection[Any], command: RemotingCommand) -> None:
    try:
        response = processor(connection.address, command)
    except Exception as error:  # any error of the caller's processor is answered, as RocketMQ does
        _LOG.warning(
            "request of the server failed",
            extra={"fields": {"peer": connection.address, "request": name_of(command.code)}},
            exc_info=True,
        )
        response = command.reply(int(ResponseCode.SYSTEM_ERROR), remark=f"{type(error).__name__}: {error}")
    if isinstance(response, ResponseFirst):
        _reply(connection, command, response.response)
        response.then()
    elif response is not None:
        _reply(connection, command, response)


def _reply(connection: RemotingConnection[Any], command: RemotingCommand, response: RemotingCommand) -> None:
    with suppress(MetaqError):  # the connection is lost, so no peer waits for the response
        connection.reply(command, response, REPLY_TIMEOUT_S)
