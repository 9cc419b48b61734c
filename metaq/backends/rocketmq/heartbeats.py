"""Tells brokers regularly that a client is there and what groups it has; they ask their members on that connection."""

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
"""Pause after a heartbeat that some broker did not take, if the usual one is not shorter."""

ANSWER_S: Final = 5.0
"""Longest wait for a broker's answer; further ones are not waited for longer."""

_JOIN_S: Final = 1.0

_LOG: Final = logging.getLogger(__name__)


class ProducerGroups:
    """The groups of one client's producers, by names as the servers know them. Any thread may add some."""

    def __init__(self, *names: str) -> None:
        self._client_id = new_client_id()
        self._names = dict.fromkeys(names)

    def add(self, name: str) -> bool:
        """Add a group; return whether it is new."""
        count = len(self._names)
        self._names[name] = None
        return len(self._names) > count

    def said(self) -> HeartbeatData:
        """Return what the client says in a heartbeat."""
        producers = tuple(ProducerData(group_name=name) for name in list(self._names))
        return HeartbeatData(client_id=self._client_id, producer_data_set=producers)


def new_client_id() -> str:
    """Return an id for brokers to know this client by; it says nothing of this machine."""
    return f"{secrets.token_hex(4)}@{os.getpid()}"


class Heartbeats:
    """A thread that sends ``groups()`` to all ``masters()``, by broker name, every ``interval_s`` seconds.

    A broker that does not answer is tried again; what is wrong with it is logged once, at ``level``.
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
        self._reached: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="metaq-heartbeats", daemon=True)

    def start(self) -> None:
        """Send the first one soon. To be called once."""
        self._thread.start()

    @property
    def reached(self) -> frozenset[str]:
        """Names of the brokers that answered the last heartbeat."""
        return frozenset(self._reached)

    def expect(self, broker_name: str) -> None:
        """Send a broker a heartbeat now, unless it answered the last one."""
        if broker_name not in self._reached:
            self._wake.set()

    def soon(self) -> None:
        """Send all brokers a heartbeat now: there is something new to say."""
        self._wake.set()

    def close(self) -> None:
        """Send no more. Brokers forget the client when its connections end."""
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
        """Tell all brokers; return whether they all answered."""
        try:
            masters = self._masters()
        except MetaqError as error:
            self._said("the name servers", str(error))
            return False
        self._said("the name servers", None)
        body = self._groups().to_json()
        asked: dict[str, Future[RemotingCommand]] = {}
        for name, address in masters.items():
            if self._closed:
                return True
            command = to_request(HeartBeat(), body, broker_name=name)
            asked[name] = self._client.submit(address, command, ANSWER_S)
        answered = [self._take(name, future) for name, future in asked.items()]
        return bool(answered) and all(answered)

    def _take(self, name: str, future: Future[RemotingCommand]) -> bool:
        try:
            response = future.result(ANSWER_S)
        except (MetaqError, TimeoutError) as error:
            self._reached.discard(name)
            self._said(f"broker {name}", str(error) or "no answer")
            return False
        if response.code != ResponseCode.SUCCESS:
            self._reached.discard(name)
            self._said(f"broker {name}", f"{name_of(response.code, response=True)}: {one_line(response.remark)}")
            return False
        self._reached.add(name)
        self._said(f"broker {name}", None)
        return True

    def _said(self, who: str, reason: str | None) -> None:
        """Log what changed."""
        if self._closed or reason == self._reasons.get(who):
            return
        if reason is None:
            del self._reasons[who]
            _LOG.log(min(self._level, logging.INFO), "heartbeats: %s answers again", who)
        else:
            self._reasons[who] = reason
            _LOG.log(self._level, "heartbeats: %s does not take them: %s; trying again", who, reason)
