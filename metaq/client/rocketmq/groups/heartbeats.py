"""Tells brokers that a consumer is there, as long as it is: a heartbeat every 30 seconds, and at once on a new
connection, because a broker forgets a member whose connection has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from metaq.backends.rocketmq.answers import Answers
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.clock import Clock
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.bodies.groups import HeartbeatData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat, UnregisterClient

ANSWER_S: Final = 3.0
"""How long an answer is waited for."""
AGAIN_S: Final = 1.0
"""Pause after heartbeats that did not reach every broker that they had reached before."""

_LOG: Final = logging.getLogger(__name__)


class Heartbeats:
    """A thread that sends ``data`` to ``brokers()``, masters and slaves; ``on_lost`` is called when nobody takes it."""

    def __init__(
        self,
        client: RemotingClient,
        data: HeartbeatData,
        brokers: Callable[[], Iterable[Address]],
        on_lost: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._client, self._data, self._brokers, self._on_lost, self._clock = client, data, brokers, on_lost, clock
        self._beating = threading.Lock()
        self._wake, self._stopped = threading.Event(), False
        self._said = ""
        self.reached: set[Address] = set()
        """The brokers that took the last heartbeat."""
        self._missing: set[Address] = set()
        self._thread = threading.Thread(target=self._run, name=f"metaq-heartbeat-{data.client_id}", daemon=True)

    def start(self) -> None:
        """Start the thread; the first heartbeat is ``beat``'s."""
        self._thread.start()

    def soon(self) -> None:
        """Have heartbeats sent at once: a connection has ended."""
        self._wake.set()

    def beat(self) -> None:
        """Send heartbeats and wait for the answers; any thread may do so.

        Raises:
            MetaqError: No broker took one; the reason that the last of them gave.
        """
        with self._beating:
            command = to_request(HeartBeat(), self._data.to_json())
            sent = [(address, self._client.submit(address, command, ANSWER_S)) for address in set(self._brokers())]
            reached, failure = set(), None
            for address, future in sent:
                error = _failure(address, command, future)
                if error is None:
                    reached.add(address)
                else:
                    failure = error
            self._missing = self.reached - reached
            self.reached = reached
            self._say(failure)
            if not reached and failure is not None:
                raise failure

    def _say(self, failure: MetaqError | None) -> None:
        text = "" if failure is None else str(failure)
        if text and text != self._said:
            group = self._data.consumer_data_set[0].group_name
            _LOG.warning("group %s: a broker did not take a heartbeat, trying again: %s", group, text)
        self._said = text

    def close(self, group: str) -> None:
        """End the thread, and tell the brokers that the client has left ``group``."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * ANSWER_S)
        leave = to_request(UnregisterClient(client_id=self._data.client_id, consumer_group=group))
        for future in [self._client.submit(address, leave, ANSWER_S) for address in self.reached]:
            with suppress(MetaqError, TimeoutError):  # it finds out by itself when the connection ends
                future.result(ANSWER_S)
        self.reached = set()

    def _run(self) -> None:
        while not self._stopped:
            soon = bool(self._missing) or not self.reached
            self._wake.wait(AGAIN_S if soon else HEARTBEAT_S)
            self._wake.clear()
            if self._stopped:
                return
            was_reached = bool(self.reached)
            with suppress(MetaqError):  # it was said
                self.beat()
            if was_reached and not self.reached:
                self._on_lost()


def _failure(address: Address, command: RemotingCommand, future: Future[RemotingCommand]) -> MetaqError | None:
    try:
        Answers(address).accepted(future.result(), command, "a heartbeat")
    except MetaqError as error:
        return error
    return None
