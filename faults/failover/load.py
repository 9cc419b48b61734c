"""Clients that send numbered messages to a pair, one family in each thread, and note what was acknowledged and when.

A number is sent once. After an error the next one follows, so a number is stored at most once unless the client sends
it again by itself; in the family of transactions, never more than once.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import MetaqError, TransactionNotFound
from metaq.model import Xid

PAUSE_S: Final = 0.002
AFTER_ERROR_S: Final = 0.05
UNIQUE: Final = "failover"


class Family(ABC):
    """One kind of client, on the topic of its name. ``acknowledged``: number -> when, by the monotonic clock."""

    name: str
    exactly_once = False

    def __init__(self) -> None:
        self.acknowledged: dict[int, float] = {}
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def first_after(self, moment_s: float) -> float | None:
        """Return how long after a moment the first message was acknowledged that was sent after it."""
        times = [at for at in list(self.acknowledged.values()) if at > moment_s]
        return min(times) - moment_s if times else None

    def _run(self) -> None:
        number = 0
        try:
            self._open()
            while not self._stopping.is_set():
                try:
                    self._send(number)
                except MetaqError as error:
                    self.errors.append(f"{number}: {error}")
                    time.sleep(AFTER_ERROR_S)
                else:
                    self.acknowledged[number] = time.monotonic()
                    time.sleep(PAUSE_S)
                number += 1
        finally:
            self._close()

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
        super().__init__()

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

    def _send(self, number: int) -> None:
        xid = Xid(1, b"%d" % number, b"b", UNIQUE)
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
    """A producer of RocketMQ, with the name servers of both members."""

    name = "rocketmq"

    def __init__(self, name_servers: Sequence[str]) -> None:
        self._name_servers = ";".join(name_servers)
        super().__init__()

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
