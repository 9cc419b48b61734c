"""Consumers in groups that read what the families send, each in a thread; they note what they have handled, and when.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final

from faults.failover.load import longest_gap_s
from faults.groups.verdict import Fault, Handled, complaints
from metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import MetaqError
from metaq.net.clock import wall_clock_ms

GROUP: Final = "failover"
SAVE_S: Final = 1.0
ALLOWED_MS: Final = 3000
"""A message that was handled longer before a fault than this is not repeated: a save period, and the time of a save."""

AFTER_END_S: Final = 0.2


class GroupMember(ABC):
    """The only member of its group, which reads one topic. It opens a new consumer whenever one ends."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.name = f"consumer of {topic}"
        self.numbers: set[int] = set()
        self.handled: list[Handled] = []
        self.ended: list[str] = []
        """Errors that a consumer ended with: there must not be any."""
        self.reopened = 0
        self._times_s: list[float] = []
        self._stopping = False
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """Leave the group soon; do not wait for it."""
        self._stopping = True
        self.reopen()

    def reopen(self) -> None:
        """Let the consumer leave the group; another one continues."""
        if self._consumer is not None:
            self.reopened += 1
            self._consumer.stop()

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time without a message from a moment on until the latest one."""
        return longest_gap_s(self._times_s, since_s)

    def has(self, numbers: Iterable[int]) -> bool:
        """Whether all of ``numbers`` were handled."""
        return self.numbers.issuperset(numbers)

    def repeats(self, faults: list[Fault]) -> list[str]:
        """Return a sentence for each message that was repeated, though it was handled long before a fault."""
        return list(complaints((), self.handled, faults, ALLOWED_MS))

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._consume()
            except MetaqError as error:
                self.ended.append(f"{type(error).__name__}: {error}")
                time.sleep(AFTER_END_S)

    def _handle(self, message: Any) -> None:
        self.numbers.add(int(message.data))
        self._times_s.append(time.monotonic())
        self.handled.append(Handled(wall_clock_ms(), self.name, f"{message.partition} {message.offset}"))

    @abstractmethod
    def _consume(self) -> None:
        """Open a consumer, and read until it is stopped."""

    @abstractmethod
    def positions(self) -> Mapping[str, int]:
        """Return partition -> the stored position. Raises ``MetaqError``."""


class MetaqMember(GroupMember):
    """A consumer of MetaQ; ``cluster`` as in ``MetaQ``."""

    def __init__(self, topic: str, cluster: str) -> None:
        super().__init__(topic)
        self._cluster = cluster

    def _consume(self) -> None:
        with MetaQ(self._cluster) as client, client.consumer(GROUP, [self.topic], save_s=SAVE_S) as self._consumer:
            self._consumer.run(self._handle)

    def positions(self) -> Mapping[str, int]:
        if not self._cluster.startswith("zk:"):
            return {}  # a pair keeps no groups: they are in a file of this machine
        with MetaQ(self._cluster) as client:
            return {str(each.partition): each.position or 0 for each in client.cluster.lag(GROUP, [self.topic])}


class RocketmqMember(GroupMember):
    """A consumer of RocketMQ. ``name_servers`` are separated by semicolons."""

    def __init__(self, topic: str, name_servers: str) -> None:
        super().__init__(topic)
        self._name_servers = name_servers

    def _consume(self) -> None:
        topics = [self.topic]
        with RocketMQ(self._name_servers) as client, client.consumer(GROUP, topics, save_s=SAVE_S) as self._consumer:
            self._consumer.run(self._handle)

    def positions(self) -> Mapping[str, int]:
        with RocketMQ(self._name_servers) as client:
            return {str(each.partition): each.position or 0 for each in client.cluster.lag(GROUP, [self.topic])}
