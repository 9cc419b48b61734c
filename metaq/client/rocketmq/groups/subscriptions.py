"""What a consumer subscribes to: its topics, and the group's retry topic if its members share the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pulls import ALL, Subscription
from metaq.formats.rocketmq.tags import tag_hash
from metaq.net.clock import wall_clock_ms
from metaq.protocols.remoting.bodies.groups import SubscriptionData

RETRY_PREFIX: Final = "%RETRY%"
"""What the name of the topic begins with in which messages come again that a member has sent back."""


class Subscriptions:
    """The topics of ``group``. ``broadcast``: nothing comes again."""

    def __init__(self, group: str, topics: Sequence[str], subscription: Subscription, *, broadcast: bool) -> None:
        self.topics = list(dict.fromkeys(topics))
        """What the program has named."""
        self.retry_topic = None if broadcast else RETRY_PREFIX + group
        self._subscription = subscription
        self._version = wall_clock_ms()  # brokers take the newest of a client

    @property
    def all_topics(self) -> list[str]:
        """The topics and the retry topic."""
        return self.topics if self.retry_topic is None else [*self.topics, self.retry_topic]

    def of(self, topic: str) -> Subscription:
        """Return the filter for a topic; what comes again has passed it already."""
        return ALL if topic == self.retry_topic else self._subscription

    def data(self, namespace: str | None) -> tuple[SubscriptionData, ...]:
        """Return the subscriptions as brokers are told of them."""
        return tuple(self._data(topic, namespace) for topic in self.all_topics)

    def _data(self, topic: str, namespace: str | None) -> SubscriptionData:
        wanted = self.of(topic)
        tags = sorted(wanted.tags or ())
        return SubscriptionData(
            topic=with_namespace(topic, namespace),
            sub_string=wanted.expression.strip() or "*",
            tags_set=tuple(tags),
            code_set=tuple(tag_hash(tag) for tag in tags),
            sub_version=self._version,
            expression_type=wanted.type,
        )
