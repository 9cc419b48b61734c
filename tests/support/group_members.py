"""A consumer of a group of RocketMQ's, with threads or with asyncio, driven by the test's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fix_broker import wait_until

from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.model import TopicPartition


class Member:
    """A consumer of either kind, with the names of the sync one."""

    def __init__(self, consumer: Any, ask: Callable[[Any], Any]) -> None:
        self.consumer, self._ask = consumer, ask

    def fetch(self, timeout: float = 0.2) -> list[RocketDelivery]:
        found: list[RocketDelivery] = self._ask(self.consumer.fetch(timeout=timeout))
        return found

    def commit(self) -> None:
        self._ask(self.consumer.commit())

    def read(self, count: int) -> list[str]:
        found: list[str] = []
        wait_until(
            lambda: bool(found.extend(one.data.decode() for one in self.fetch())) or len(found) >= count,
            f"{count} messages are read",
        )
        return sorted(found)

    def queues(self, topic: str = "orders") -> list[TopicPartition]:
        return [where for where in self.consumer.assignment if where.topic == topic]


Open = Callable[..., Member]
Make = Callable[..., Open]
