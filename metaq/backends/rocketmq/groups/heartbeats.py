"""Announces a client and its groups to brokers regularly; brokers send questions to the groups on those connections."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from metaq.backends.rocketmq.answers import one_line
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.bodies.groups import HeartbeatData, ProducerData
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat

RETRY_S: Final = 5.0
"""Pause after a heartbeat that a broker did not accept, unless the regular one is shorter."""

ANSWER_S: Final = 5.0
"""Longest wait for the answers of one round of heartbeats."""

_JOIN_S: Final = 1.0

_LOG: Final = logging.getLogger(__name__)


class ProducerGroups:
    """The groups of one client's producers, by full name. Thread-safe."""

    def __init__(self, *names: str) -> None:
        self._client_id = new_client_id()
        self._names = dict.fromkeys(names)

    @property
    def client_id(self) -> str:
        """The id by which brokers know the client."""
        return self._client_id

    def add(self, name: str) -> bool:
        """Add a group; return whether it is new."""
        count = len(self._names)
        self._names[name] = None
        return len(self._names) > count

    def said(self) -> HeartbeatData:
        """Return the content of a heartbeat."""
        producers = tuple(ProducerData(group_name=name) for name in list(self._names))
        return HeartbeatData(client_id=self._client_id, producer_data_set=producers)


def new_client_id() -> str:
    """Return an id by which brokers know this client; it reveals nothing about this machine."""
    return f"{secrets.token_hex(4)}@{os.getpid()}"


class Heartbeats:
    """A thread that sends ``groups()`` to all ``masters()``, by broker name, every ``interval_s`` seconds.

    Brokers that do not answer are retried; their errors are logged once, at ``level``. A broker forgets the groups when
    the connection ends, and the next master of a pair does not know them: they are announced again at once.
    """

    def __init__(
        self,
        client: RemotingClient,
        masters: Callable[[], Mapping[str, Address]],
        groups: Callable[[], HeartbeatData],
        interval_s: float = HEARTBEAT_S,
        level: int = logging.WARNING,
    ) -> None:
        self._level = level
        self._client, self._masters, self._groups, self._interval_s = client, masters, groups, interval_s
        self._wake = threading.Event()
        self._closed = False
        self._reached: dict[str, Address] = {}
        self._ended: set[Address] = set()
        """Servers to which a connection has ended since the last round of heartbeats began."""
        self._reasons: dict[str, str] = {}
        self._changed = threading.Condition()  # guards the next three
        self._rounds_begun = self._rounds_ended = 0
        self._was_complete = False
        self._thread = threading.Thread(target=self._run, name="metaq-heartbeats", daemon=True)
        client.when_ended(self._link_ended)

    def start(self) -> None:
        """Start the thread; call once. The first heartbeat follows soon."""
        self._thread.start()

    @property
    def reached(self) -> frozenset[str]:
        """Names of the brokers that answered the last heartbeat."""
        return frozenset(self._reached)

    def expect(self, broker_name: str) -> None:
        """Send a heartbeat to a broker now, unless it answered the last one on a connection that there still is."""
        if broker_name not in self._reached:
            self._wake.set()

    def soon(self) -> None:
        """Send all brokers a heartbeat now: the content has changed."""
        self._wake.set()

    def now(self) -> None:
        """Send all brokers a heartbeat, and wait for their answers, for ``ANSWER_S`` at most.

        Another ``ANSWER_S`` may pass before, until a round of heartbeats that has begun ends. All calls that wait for
        it share the next round.
        """
        self._beat()

    def close(self) -> None:
        """Stop. Brokers forget the client when its connections end."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._closed:
            is_complete = self._beat()
            self._wake.wait(self._interval_s if is_complete else min(self._interval_s, RETRY_S))
            self._wake.clear()

    def _beat(self) -> bool:
        """Send a heartbeat to all brokers; return whether they all answered.

        One round is sent at a time. If one begins after this call, another thread's, it is waited for and is enough.
        """
        with self._changed:
            before = self._rounds_begun
            self._changed.wait_for(lambda: self._rounds_ended > before or self._rounds_ended == self._rounds_begun)
            if self._rounds_ended > before:
                return self._was_complete
            self._rounds_begun += 1
        is_complete = False
        try:
            is_complete = self._beat_alone()
        finally:
            with self._changed:
                self._rounds_ended, self._was_complete = self._rounds_begun, is_complete
                self._changed.notify_all()
        return is_complete

    def _beat_alone(self) -> bool:
        try:
            masters = self._masters()
        except MetaqError as error:
            self._said("the name servers", str(error))
            return False
        self._said("the name servers", None)
        self._ended.clear()
        body = self._groups().to_json()
        asked: dict[str, Future[RemotingCommand]] = {}
        for name, address in masters.items():
            if self._closed:
                return True
            command = to_request(HeartBeat(), body, broker_name=name)
            asked[name] = self._client.submit(address, command, ANSWER_S)
        answered = [self._take(name, masters[name], future) for name, future in asked.items()]
        return bool(answered) and all(answered)

    def _link_ended(self, address: Address) -> None:
        self._ended.add(address)  # first: an answer may be about to be noted
        if lost := [name for name, reached in list(self._reached.items()) if reached == address]:
            for name in lost:
                self._reached.pop(name, None)
            self._wake.set()

    def _take(self, name: str, address: Address, future: Future[RemotingCommand]) -> bool:
        try:
            response = future.result(ANSWER_S)
        except (MetaqError, TimeoutError) as error:
            self._reached.pop(name, None)
            self._said(f"broker {name}", str(error) or "no answer")
            return False
        if response.code != ResponseCode.SUCCESS:
            self._reached.pop(name, None)
            self._said(f"broker {name}", f"{name_of(response.code, response=True)}: {one_line(response.remark)}")
            return False
        self._reached[name] = address
        self._said(f"broker {name}", None)
        if address in self._ended:  # after it had answered, perhaps
            self._link_ended(address)
        return True

    def _said(self, who: str, reason: str | None) -> None:
        if self._closed or reason == self._reasons.get(who):
            return
        if reason is None:
            del self._reasons[who]
            _LOG.log(min(self._level, logging.INFO), "heartbeats: %s answers again", who)
        else:
            self._reasons[who] = reason
            _LOG.log(self._level, "heartbeats: not accepted by %s: %s; trying again", who, reason)
