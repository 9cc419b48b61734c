"""The subscriptions of a consumer: its topics, and the group's retry topic unless it broadcasts."""

from __future__ import annotations

from collections.abc import Sequence

from metaq.backends.rocketmq.reads.pulls import ALL, Subscription
from metaq.formats.topic_names import RETRY_PREFIX


class Subscriptions:
    """The topics of ``group``. ``broadcast``: there is no retry topic."""

    def __init__(self, group: str, topics: Sequence[str], subscription: Subscription, *, broadcast: bool) -> None:
        self.group = group
        self.topics = list(dict.fromkeys(topics))
        """The topics that the program has named."""
        self.retry_topic = None if broadcast else RETRY_PREFIX + group
        self._subscription = subscription

    @property
    def all_topics(self) -> list[str]:
        """The topics and the retry topic."""
        return self.topics if self.retry_topic is None else [*self.topics, self.retry_topic]

    def of(self, topic: str) -> Subscription:
        """Return the filter for a topic; messages of the retry topic have passed it already."""
        return ALL if topic == self.retry_topic else self._subscription
