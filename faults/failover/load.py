"""Clients that send numbered messages to a pair, one family in each thread, and note what was acknowledged and when.

A number is sent once. After an error the next one follows, so a number is stored at most once unless the client sends
it again by itself; in the family of transactions, never more than once.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import ConnectionFailed, MetaqError, TransactionNotFound
from metaq.model import Xid

PAUSE_S: Final = 0.002
AFTER_ERROR_S: Final = 0.05
UNIQUE: Final = "failover"
BRANCHES_MAX: Final = 3
"""Branches that a new client begins for one message."""


def longest_gap_s(times_s: Sequence[float], since_s: float) -> float:
    """Return the longest time between a moment and the first later one of ``times_s``, or between two of these."""
    later = itertools.takewhile(lambda at_s: at_s > since_s, reversed(times_s))
    return max((end - begin for end, begin in itertools.pairwise([*later, since_s])), default=0.0)


class Family(ABC):
    """One kind of client, on the topic of its name. ``acknowledged`` are the numbers that were."""

    name: str
    exactly_once = False
    needs_zookeeper = False
    comes_late = False
    """Whether something that was acknowledged may be readable only after some seconds, and while its client is open.

    Then ``end`` closes the client, not ``stop``.
    """

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self._acknowledged_s: list[float] = []
        self._last_sent_s = float("-inf")
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """Send nothing more, and do not wait for the last message: brokers may be away for good."""
        self._stopping.set()

    def has_sent_since(self, moment_s: float) -> bool:
        """Whether a message was acknowledged that was sent after a moment."""
        return self._last_sent_s >= moment_s

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time without an acknowledgement from a moment on until the latest one."""
        return longest_gap_s(self._acknowledged_s, since_s)

    def _run(self) -> None:
        number = 0
        try:
            self._open()
            while not self._stopping.is_set():
                sent_s = time.monotonic()
                try:
                    self._send(number)
                except MetaqError as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                    time.sleep(AFTER_ERROR_S)
                else:
                    self.acknowledged.append(number)
                    self._acknowledged_s.append(time.monotonic())
                    self._last_sent_s = sent_s
                    time.sleep(PAUSE_S)
                number += 1
        finally:
            if not self.comes_late:
                self._close()

    def end(self) -> None:
        """Close what ``stop`` left open. Called once, after ``stop`` and the last ``stored``."""
        if self.comes_late:
            self._close()

    def send_alone(self, number: int) -> None:
        """Open a client for one message. Raises ``MetaqError``."""
        self._open()
        try:
            self._send(number)
        finally:
            self._close()

    @abstractmethod
    def another(self) -> Family:
        """Return another client of this kind."""

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _send(self, number: int) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def stored(self) -> list[int]:
        """Return the numbers that can be read."""


class MetaqFamily(Family):
    """A producer of MetaQ; ``cluster`` as in ``MetaQ``."""

    def __init__(self, name: str, cluster: str) -> None:
        self.name, self._cluster = name, cluster
        self.needs_zookeeper = cluster.startswith("zk:")
        super().__init__()

    def another(self) -> Family:
        return type(self)(self.name, self._cluster)

    def _open(self) -> None:
        self._client = MetaQ(self._cluster)
        self._producer = self._client.producer()

    def _send(self, number: int) -> None:
        self._producer.send(self.name, b"%d" % number)

    def _close(self) -> None:
        self._client.close()

    def stored(self) -> list[int]:
        with MetaQ(self._cluster) as client:
            return [int(message.data) for message in client.browse(self.name)]


class TransactionFamily(MetaqFamily):
    """Each message is an XA branch that is prepared, and then committed until that succeeds."""

    exactly_once = True

    def send_alone(self, number: int) -> None:
        """Send one message in a transaction. If a lost connection ends a branch, begin again, as transaction managers
        do: nothing is sent again inside a branch.
        """
        self._open()
        try:
            for part in range(BRANCHES_MAX):
                try:
                    return self._send(number, b"b%d" % part)
                except ConnectionFailed:
                    if part == BRANCHES_MAX - 1:
                        raise
        finally:
            self._close()

    def _send(self, number: int, part: bytes = b"b") -> None:
        xid = Xid(1, b"%d" % number, part, UNIQUE)
        branch = self._producer.xa(xid)
        with branch:
            branch.send(self.name, b"%d" % number)
            branch.prepare()
        while True:  # prepared: it survives whatever happens, and only this thread ends it
            try:
                self._client.commit(xid)
            except TransactionNotFound:
                return  # committed by a request whose answer was lost
            except MetaqError:
                if self._stopping.is_set():
                    raise
                time.sleep(AFTER_ERROR_S)
            else:
                return

    def roll_back_rest(self) -> None:
        """Roll back what was prepared when a client lost its connection: nobody will commit it."""
        with MetaQ(self._cluster) as client:
            for each in client.prepared(UNIQUE):
                client.rollback(each.xid)


class RocketmqFamily(Family):
    """A producer of RocketMQ, with the name servers of both members, separated by semicolons."""

    name = "rocketmq"

    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers
        super().__init__()

    def another(self) -> Family:
        return type(self)(self._name_servers)

    def _open(self) -> None:
        self._client = RocketMQ(self._name_servers)
        self._producer = self._client.producer()

    def _send(self, number: int) -> None:
        self._producer.send(self.name, b"%d" % number)

    def _close(self) -> None:
        self._client.close()

    def stored(self) -> list[int]:
        with RocketMQ(self._name_servers) as client:
            return [int(message.data) for message in client.browse(self.name)]


class HalfMessageFamily(RocketmqFamily):
    """Each message is a transaction of RocketMQ. One whose commit got lost is committed when the broker asks."""

    name = "half-messages"
    comes_late = True

    def _open(self) -> None:
        self._client = RocketMQ(self._name_servers)
        self._transactional = self._client.transactional_producer(UNIQUE, lambda message: "commit")
        self._transactional.start()

    def _send(self, number: int) -> None:
        with self._transactional.transaction() as transaction:
            transaction.send(self.name, b"%d" % number)
