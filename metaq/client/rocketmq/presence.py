"""Announces the producers of a program to the brokers that they send to, every 30 seconds.

All producers of a ``RocketMQ`` share one connection to each broker, which the first message for one of its topics
opens; the first request that waits for a reply opens those to all brokers, since each may get the reply. Sending does
not depend on it: failures here are retried, and raise nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from metaq.backends.rocketmq.groups.heartbeats import Heartbeats, ProducerGroups
from metaq.backends.rocketmq.replies import receive_replies
from metaq.client.rocketmq.requests import WaitingRequests
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import MetaqError
from metaq.model import Address, Partition
from metaq.net.forks import notify_after_fork
from metaq.net.remoting_client import RemotingClient


class Presence:
    """Announces producers. ``connect`` makes the client for their connections. Thread-safe."""

    def __init__(self, directory: NameServerDirectory, connect: Callable[[], RemotingClient]) -> None:
        self._directory, self._connect = directory, connect
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """Start without registrations; also in a child process, which gets its own id and connections."""
        notify_after_fork(self._begin)
        self._lock = threading.Lock()
        self._groups = ProducerGroups()
        self._topics: dict[str, str] = {}
        self._client: RemotingClient | None = None
        self._heartbeats: Heartbeats | None = None
        self._everywhere = False
        self.requests = WaitingRequests()
        """Requests of this program that wait for replies."""

    def sends(self, group: str, topic: str, queues: Iterable[Partition]) -> None:
        """Register that a producer of ``group`` (full name) sends to queues of ``topic``. Returns at once."""
        with self._lock:
            if self._closed:
                return
            count, is_new = len(self._topics), self._groups.add(group)
            for queue in queues:
                self._topics.setdefault(queue.broker_name, topic)
            if self._heartbeats is None:
                self._start()
            elif is_new or len(self._topics) > count:
                self._heartbeats.soon()

    @property
    def client_id(self) -> str:
        """The id by which brokers know this program, and which requests carry for their replies."""
        return self._groups.client_id

    def waits_for_replies(self, group: str, broker_name: str) -> None:
        """Announce a producer of ``group`` (full name) to all brokers before it sends a request to ``broker_name``.

        A broker that does not know the client cannot push a reply. So the first call waits for the brokers' answers,
        and a later one does if ``broker_name`` has not answered: it was listed only now, or its connection has ended.

        Raises:
            ValueError: The client is closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the client is closed")
            is_first = self._groups.add(group) or not self._everywhere
            self._everywhere = True
            heartbeats = self._start() if self._heartbeats is None else self._heartbeats
        if is_first or broker_name not in heartbeats.reached:
            heartbeats.now()

    def _start(self) -> Heartbeats:
        """Connect, and begin with heartbeats."""
        self._client = self._connect()
        receive_replies(self._client, self.requests.take)
        self._heartbeats = Heartbeats(self._client, self._masters, self._groups.said, level=logging.DEBUG)
        self._heartbeats.start()
        return self._heartbeats

    def close(self) -> None:
        """Stop. Brokers remove the producers when the connections end."""
        with self._lock:
            self._closed = True
            heartbeats, client = self._heartbeats, self._client
            self._heartbeats = self._client = None
        if heartbeats is not None and client is not None:
            heartbeats.close()
            client.close()

    def _masters(self) -> Mapping[str, Address]:
        with self._lock:
            topics, everywhere = dict(self._topics), self._everywhere
        found = self._directory.masters() if everywhere else {}
        for name, topic in topics.items():
            try:
                found[name] = self._directory.write_address(name, topic=topic)
            except MetaqError:  # the broker is away: no messages go to its queues either
                continue
        return found
