"""Producers that find brokers in ZooKeeper and remember what was acknowledged, and the judge of what is stored.

Every payload is sent once, whatever becomes of it. So it may be stored once, or, if nobody acknowledged it, not at all.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fix_broker import DEADLINE_S, wait_until
from listeners import Relay

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.client.consumer import Consumer
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import MetaqError, TopicNotFound
from metaq.model import Address, Message, Partition
from metaq.net.transport import Timeouts

TOPIC = "test"
AGAIN_S = 0.02
"""Pause after a failure; a producer in trouble must not take the machine from the brokers."""
PACE_S = 0.004
"""Pause after a success, for the same reason."""

Position = tuple[Partition, int]
"""Partition and offset of a message."""


@dataclass(frozen=True)
class Receipt:
    """A message that the broker at ``by`` has acknowledged."""

    partition: Partition
    offset: int
    payload: bytes
    by: Address


class View:
    """One process's way to the brokers, as a client has it."""

    def __init__(self, option: str) -> None:
        self.memory = TreeCache(ZooKeeperAddress.parse(option), 2.0)
        self.pool = SessionPool(Timeouts(connect_s=2.0, request_s=5.0))
        self.directory = ZooKeeperDirectory(self.memory, self.pool)


class Producers:
    """Threads that put messages, to each partition that is open for writing in turn, until ``end``."""

    def __init__(self, option: str) -> None:
        self.receipts: list[Receipt] = []
        self._ending = threading.Event()
        self._broken: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._work, args=(View(option), number), daemon=True) for number in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Put no more; fail if a thread met what is no trouble of brokers or ZooKeeper."""
        self._ending.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not self._broken, self._broken
        assert not any(thread.is_alive() for thread in self._threads)

    def go_on(self, *broker_ids: int, count: int = 10, deadline_s: float = DEADLINE_S) -> None:
        """Return when each of the brokers has acknowledged ``count`` more messages."""
        begun = len(self.receipts)

        def done() -> bool:
            assert not self._broken, self._broken
            new = Counter(receipt.partition.broker_id for receipt in self.receipts[begun:])
            return all(new[broker_id] >= count for broker_id in broker_ids)

        wait_until(done, f"{count} more messages on each of {broker_ids}", deadline_s)

    def _work(self, view: View, thread: int) -> None:
        number = 0
        try:
            while not self._ending.is_set():
                for partition, address in self._places(view).items():
                    number += 1
                    self._put(view, partition, address, b"%d-%d-" % (thread, number) + b"x" * (number % 200))
        except Exception as error:  # told by end() and go_on()
            self._broken.append(error)
        view.pool.close()

    def _places(self, view: View) -> Mapping[Partition, Address]:
        try:
            return view.directory.writable(TOPIC)
        except (TopicNotFound, MetaqError):
            self._ending.wait(AGAIN_S)
            return {}

    def _put(self, view: View, partition: Partition, address: Address, payload: bytes) -> None:
        try:
            with view.pool.lease(address) as session:
                stored = put(session, TOPIC, partition.index, Message(payload))
        except MetaqError:
            view.memory.invalidate()  # it may have moved
            self._ending.wait(AGAIN_S)
        else:
            self.receipts.append(Receipt(partition, stored.offset, payload, address))
            self._ending.wait(PACE_S)


def stored(option: str) -> dict[Position, bytes]:
    """Every message of the topic, as a client reads it that finds the brokers in ZooKeeper."""
    view = View(option)
    consumer = Consumer(view.directory, view.pool)
    partitions = view.directory.partitions(TOPIC)
    found = {
        (partition, frame.offset): frame.message.payload
        for partition in partitions
        for frame in consumer.messages(TOPIC, partition)
    }
    view.pool.close()
    return found


def lost(receipts: Collection[Receipt], found: Mapping[Position, bytes]) -> list[Receipt]:
    """What was acknowledged and is not where it was acknowledged."""
    return [each for each in receipts if found.get((each.partition, each.offset)) != each.payload]


def repeated(found: Mapping[Position, bytes]) -> list[bytes]:
    return [payload for payload, times in Counter(found.values()).items() if times > 1]


def holes(receipts: Collection[Receipt], found: Mapping[Position, bytes]) -> list[Receipt]:
    """What is lost although something that stood behind it in its partition is not: no tail that was cut off."""
    missing = lost(receipts, found)
    kept: dict[Partition, int] = {}
    for each in receipts:
        if each not in missing:
            kept[each.partition] = max(each.offset, kept.get(each.partition, -1))
    return [each for each in missing if each.offset < kept.get(each.partition, -1)]


class Cable(Relay):
    """The connection of one broker to ZooKeeper, which can be cut and mended."""

    def __init__(self, port: int) -> None:
        self._whole = True
        super().__init__(Address("127.0.0.1", port))

    def cut(self) -> None:
        """End what is connected, and everybody who tries from now on."""
        self._whole = False
        self.end_connections()

    def mend(self) -> None:
        self._whole = True

    def _relay(self, client: socket.socket) -> None:
        if self._whole:
            super()._relay(client)
        client.close()
