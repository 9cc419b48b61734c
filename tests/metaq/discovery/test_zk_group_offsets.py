"""Offsets of consumer groups in a real ZooKeeper, in both directions and in both generations."""

from __future__ import annotations

import pytest
from fix_zookeeper import ZooKeeperRoot

from metaq.discovery.group_offsets import GroupOffsetStore
from metaq.discovery.zk_layout import GroupOffset, ZooKeeperAddress
from metaq.errors import ZooKeeperAway, ZooKeeperRefused
from metaq.model import Partition, TopicPartition

pytestmark = [pytest.mark.process, pytest.mark.slow]

FIRST, SECOND, THIRD = (TopicPartition("test", Partition(3, index)) for index in range(3))


@pytest.fixture
def store(zookeeper: ZooKeeperRoot) -> GroupOffsetStore:
    return GroupOffsetStore(ZooKeeperAddress.parse(zookeeper.option), 5.0)


def test_what_java_consumers_wrote_is_read(store: GroupOffsetStore, zookeeper: ZooKeeperRoot) -> None:
    zookeeper.put("/consumers/demo-group/offsets/test/3-0", "-5468926877571731456-130")
    zookeeper.put("/consumers/demo-group/offsets/test/3-1", "111")
    zookeeper.put("/consumers/demo-group/offsets/test/3-2")  # made, and not written yet
    assert store.read("demo-group", [FIRST, SECOND, THIRD]) == {
        FIRST: GroupOffset(130, -5468926877571731456),
        SECOND: GroupOffset(111),
    }
    assert store.read("nobody", [FIRST]) == {}


def test_what_is_written_is_what_java_consumers_read(store: GroupOffsetStore, zookeeper: ZooKeeperRoot) -> None:
    zookeeper.put("/consumers/g/offsets/test/3-1", "5-7")
    zookeeper.put("/consumers/g/offsets/test/3-2", "5-9")
    store.write("g", {FIRST: GroupOffset(130, -17), SECOND: GroupOffset(111)})
    dump = zookeeper.dump("/consumers")
    assert [(each.path, each.text) for each in dump if each.text] == [
        ("/consumers/g/offsets/test/3-0", "-17-130"),
        ("/consumers/g/offsets/test/3-1", "-1-111"),
        ("/consumers/g/offsets/test/3-2", "5-9"),
    ]
    assert not any(each.ephemeral for each in dump)
    assert store.read("g", [FIRST, SECOND]) == {FIRST: GroupOffset(130, -17), SECOND: GroupOffset(111)}


def test_who_reads_as_a_group(store: GroupOffsetStore, zookeeper: ZooKeeperRoot) -> None:
    assert store.consumers("g") == []
    zookeeper.put("/consumers/g/ids/g_host-1-uuid", "test", ephemeral=True)
    assert store.consumers("g") == ["g_host-1-uuid"]


def test_an_offset_that_is_none(store: GroupOffsetStore, zookeeper: ZooKeeperRoot) -> None:
    zookeeper.put("/consumers/g/offsets/test/3-0", "soon")
    with pytest.raises(ZooKeeperRefused, match="'soon' is not an offset of a group; expected MESSAGE_ID") as refused:
        store.read("g", [FIRST])
    assert refused.value.path == f"{zookeeper.root}/consumers/g/offsets/test/3-0"


@pytest.mark.parametrize("group", ["", "a/b", ".", ".."])
def test_names_that_are_none(group: str, store: GroupOffsetStore) -> None:
    with pytest.raises(ValueError, match="a name in ZooKeeper is not empty"):
        store.read(group, [FIRST])
    with pytest.raises(ValueError, match="a name in ZooKeeper is not empty"):
        store.write("g", {TopicPartition(group, Partition(0, 0)): GroupOffset(0)})


def test_zookeeper_away() -> None:
    store = GroupOffsetStore(ZooKeeperAddress("127.0.0.1:1"), 0.2)
    with pytest.raises(ZooKeeperAway, match="the connection was refused"):
        store.read("g", [FIRST])
