"""Telling a consumer group how far Spark is: never in the way of the query, and not more often than needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from metaq.discovery.refreshed import AWAY_PAUSE_S
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.errors import ZooKeeperAway
from metaq.model import INT64_MAX, Partition, TopicPartition
from metaq.testing.manual_clock import ManualClock
from metaq_spark.backends.metaq.group_offsets import ZooKeeperGroups, required_groups
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import LATEST_OFFSET
from metaq_spark.options.table import Use

FIRST, SECOND = (TopicPartition("orders", Partition(0, index)) for index in range(2))


class Store:
    """What ``GroupOffsetStore`` is to the connector, without a ZooKeeper."""

    def __init__(self) -> None:
        self.away = False
        self.running: list[str] = []
        self.written: list[Mapping[TopicPartition, GroupOffset]] = []
        self.asked = 0

    def read(self, group: str, partitions: object) -> dict[TopicPartition, GroupOffset]:
        return {FIRST: GroupOffset(42, -17), SECOND: GroupOffset(INT64_MAX)}

    def consumers(self, group: str) -> list[str]:
        self.asked += 1
        if self.away:
            raise ZooKeeperAway("zk1:2181", "no connection within 5 s")
        return self.running

    def write(self, group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        self.asked += 1
        if self.away:
            raise ZooKeeperAway("zk1:2181", "no connection within 5 s")
        self.written.append(offsets)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def groups(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ZooKeeperGroups:
    monkeypatch.setattr("metaq_spark.backends.metaq.group_offsets.GroupOffsetStore", lambda address, timeout_s: store)
    return ZooKeeperGroups(ZooKeeperAddress("zk1:2181"), 5.0, clock)


def test_where_a_group_is(groups: ZooKeeperGroups) -> None:
    assert groups.positions("g", [FIRST, SECOND]) == {FIRST: 42, SECOND: LATEST_OFFSET}


@pytest.mark.parametrize("group", [".", ".."])
def test_names_that_zookeeper_does_not_take(group: str) -> None:
    raw = {"zookeeper": "zk1:2181", "subscribe": "orders", "group": group, "startingOffsets": "group"}
    options = parse_source_options(raw, Use.STREAM_READ)
    with pytest.raises(OptionError, match=r"option group: group '\.+': a name in ZooKeeper is not empty, has no slash"):
        required_groups(options, None)


def test_only_what_has_changed_is_written(groups: ZooKeeperGroups, store: Store) -> None:
    groups.commit("g", {FIRST: 21, SECOND: 0})
    groups.commit("g", {FIRST: 21, SECOND: 0})
    groups.commit("g", {FIRST: 21, SECOND: 42})
    assert store.written == [{FIRST: GroupOffset(21), SECOND: GroupOffset(0)}, {SECOND: GroupOffset(42)}]


def test_zookeeper_away_stops_no_query(
    groups: ZooKeeperGroups, store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    groups.commit("g", {FIRST: 21})
    store.away = True
    with caplog.at_level(logging.WARNING):
        for offset in range(42, 420, 21):
            groups.commit("g", {FIRST: offset})
        assert store.asked == 3, "it was left alone after it had not answered"
        clock.advance(AWAY_PAUSE_S)
        groups.commit("g", {FIRST: 420})
        assert store.asked == 4
    assert [record.getMessage() for record in caplog.records] == [
        "the offsets of group g are not written for now: "
        "ZooKeeper at zk1:2181 cannot be reached: no connection within 5 s"
    ]
    store.away = False
    clock.advance(AWAY_PAUSE_S)
    groups.commit("g", {FIRST: 420})
    assert store.written[-1] == {FIRST: GroupOffset(420)}


def test_a_group_that_is_also_read_by_others(
    groups: ZooKeeperGroups, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.running = ["g_host-1-uuid"]
    with caplog.at_level(logging.WARNING):
        groups.commit("g", {FIRST: 21})
        groups.commit("g", {FIRST: 42})
    assert [record.getMessage() for record in caplog.records] == [
        "group g has running consumers (g_host-1-uuid): they write its offsets, too"
    ]
