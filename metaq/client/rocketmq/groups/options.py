"""Options that only consumers of RocketMQ groups have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.client.groups.options import GroupOptions, OnReject, SharedOptions
from metaq.client.groups.ownership.assignment import Strategy, range_of
from metaq.client.rocketmq.groups.assignment import consistent
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.queue import QueueSettings
from metaq.client.rocketmq.records import DELAY_LEVEL_MAX

SEND_BACK: Final = "retry"
"""Value of ``on_reject``: the broker delivers the message again later, to any member."""

STRATEGIES: Final[Mapping[str, Strategy]] = {"range": range_of, "consistent": consistent}


class MoreRocketOptions(SharedOptions[RocketDelivery], total=False):
    """The options of ``RocketOptions`` beside group and topics, for type checkers."""

    tags: str
    sql: str | None
    ordered: bool
    reconsume_max: int
    delay_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketOptions(GroupOptions[RocketDelivery]):
    """Options of ``RocketMQ.consumer``; see ``GroupOptions``.

    ``tags``: ``*``, or the wanted tags separated by ``||``; ``sql``: a condition over properties instead. ``on_reject``
    is ``retry`` by default: the message is sent back to the broker, which delivers it again after ``delay_level`` (0: a
    delay that grows), up to ``reconsume_max`` times, and then moves it to the group's dead letters. With ``ordered`` a
    queue is locked at its broker while this consumer reads it.
    """

    on_reject: OnReject[RocketDelivery] = SEND_BACK
    tags: str = "*"
    sql: str | None = None
    ordered: bool = False
    reconsume_max: int = 16
    delay_level: int = 0
    broadcast: bool = False

    def __post_init__(self) -> None:
        GroupOptions.__post_init__(self)
        if self.reconsume_max < 0:
            raise ValueError(f"reconsume_max {self.reconsume_max}: expected 0 or more")
        if not 0 <= self.delay_level <= DELAY_LEVEL_MAX:
            raise ValueError(f"delay_level {self.delay_level}: expected 0..{DELAY_LEVEL_MAX}")
        if self.ordered and self.broadcast:
            raise ValueError("ordered: not for a broadcast consumer, which reads all queues without locks")
        self.subscription()

    @staticmethod
    def rejections() -> tuple[str, ...]:
        return (SEND_BACK, "park", "drop")

    @property
    def sends_away(self) -> bool:
        return self.on_reject == SEND_BACK or self.reject_topic is not None

    @property
    def strategy(self) -> Strategy:
        """The assignment strategy."""
        return STRATEGIES[self.assignment] if isinstance(self.assignment, str) else self.assignment

    def subscription(self) -> Subscription:
        """Return the filter.

        Raises:
            ValueError: It is not valid, or there are two.
        """
        return Subscription.of(self.tags, self.sql)

    def queue_settings(self, subscription: Subscription, namespace: str | None) -> QueueSettings:
        """Return the settings for reading queues with this filter."""
        skip = self.on_corrupt == "skip"
        return QueueSettings(subscription, namespace, self.fetch_size(), self.poll_max_s, skip)
