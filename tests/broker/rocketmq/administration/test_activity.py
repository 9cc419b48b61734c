"""Figures of the last minute, hour and day, from counts since the start."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from metaq_broker.rocketmq.administration.activity import BROKER, GROUPS, KEYS_MAX, TOPICS, Activity, GroupCounts

Counts = tuple[int, ...]


class Broker:
    def __init__(self) -> None:
        self.now = 100.0
        self.counts: dict[str, dict[str, Counts]] = {TOPICS: {}, GROUPS: {}, BROKER: {"C": (0, 0, 0)}}
        self.activity = Activity(self._all, lambda kind, key: self.counts.get(kind, {}).get(key), lambda: self.now)

    def _all(self) -> Mapping[str, Mapping[str, Counts]]:
        return {kind: dict(each) for kind, each in self.counts.items()}

    def later(self, seconds: int, messages: int = 0) -> None:
        """Store messages of 100 bytes each in ``orders``, every 5 seconds, and take samples."""
        for _ in range(seconds // 5):
            self.now += 5
            before = self.counts[TOPICS].get("orders", (0, 0))
            self.counts[TOPICS]["orders"] = before[0] + messages, before[1] + 100 * messages
            self.activity.sample()

    def sums(self, name: str = "TOPIC_PUT_NUMS") -> tuple[int, int, int]:
        found = self.activity.stats(name, "orders")
        assert found is not None
        return found.stats_minute.sum, found.stats_hour.sum, found.stats_day.sum


def test_a_figure_is_there_at_once_and_leaves_its_window() -> None:
    broker = Broker()
    broker.later(5, 10)
    assert broker.sums() == (10, 10, 10)
    broker.later(600)
    assert broker.sums() == (0, 10, 10)
    broker.later(2 * 3600)
    assert broker.sums() == (0, 0, 10)
    broker.later(2 * 86_400)
    assert broker.sums() == (0, 0, 0)


def test_rates_and_averages() -> None:
    broker = Broker()
    broker.later(3600, 10)
    found = broker.activity.stats("TOPIC_PUT_SIZE", "orders")
    assert found is not None
    assert (found.stats_minute.sum, found.stats_minute.avgpt) == (12_000, 100.0)
    assert found.stats_minute.tps == pytest.approx(200.0)
    assert found.stats_hour.sum == 720_000
    assert broker.activity.rate("TOPIC_PUT_NUMS", "orders") == pytest.approx(2.0)


def test_what_is_not_counted_has_no_figure() -> None:
    broker = Broker()
    assert broker.activity.stats("TOPIC_PUT_NUMS", "never") is None
    assert broker.activity.stats("NO_SUCH_NAME", "orders") is None
    assert broker.activity.stats("BROKER_PUT_NUMS", "D") is None
    assert broker.activity.stats("BROKER_PUT_NUMS", "C") is not None
    assert broker.activity.rate("TOPIC_PUT_NUMS", "never") == 0.0


def test_groups_are_counted_by_topic_up_to_a_limit() -> None:
    counts = GroupCounts()
    for messages in (3, 5):
        counts.pulled("orders", "g", messages, 100 * messages)
    counts.sent_back("orders", "g")
    assert (counts.given, counts.returned) == ({"orders@g": [8, 800, 2]}, {"orders@g": 1})
    for number in range(KEYS_MAX + 10):
        counts.pulled("t", str(number), 1, 1)
        counts.sent_back("t", str(number))
    assert len(counts.given) == len(counts.returned) == KEYS_MAX
