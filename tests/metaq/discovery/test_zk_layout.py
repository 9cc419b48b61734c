"""The tree in ZooKeeper as tables: paths and texts, there and back."""

from __future__ import annotations

import pytest

from metaq.discovery.zk_layout import (
    GroupOffset,
    Registrant,
    ZooKeeperAddress,
    ZooKeeperLayout,
    address_text,
    parse_address,
    parse_broker_id,
    parse_partition_count,
    parse_slave,
    partition_count_text,
    partitions_of,
    topic_text,
)
from metaq.model import Address, Partition, TopicPartition

LAYOUT = ZooKeeperLayout("/meta")


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (LAYOUT.ids, "/meta/brokers/ids"),
        (LAYOUT.broker(3), "/meta/brokers/ids/3"),
        (LAYOUT.master(3), "/meta/brokers/ids/3/master"),
        (LAYOUT.slave(3, 0), "/meta/brokers/ids/3/slave0"),
        (LAYOUT.config_checksum(3), "/meta/brokers/ids/3/master_config_checksum"),
        (f"{LAYOUT.topics}/wild*/{Registrant(3)}", "/meta/brokers/topics/wild*/3-m"),
        (f"{LAYOUT.topics_pub}/t/{Registrant(3, 12)}", "/meta/brokers/topics-pub/t/3-s12"),
        (f"{ZooKeeperLayout('/a/b').topics_sub}/t", "/a/b/brokers/topics-sub/t"),
        (LAYOUT.member(3), "/meta/members/3"),
        (LAYOUT.consumer_ids("g"), "/meta/consumers/g/ids"),
        (LAYOUT.offset("g", TopicPartition("a-b", Partition(3, 1))), "/meta/consumers/g/offsets/a-b/3-1"),
    ],
)
def test_paths(made: str, path: str) -> None:
    assert made == path


@pytest.mark.parametrize(
    ("name", "registrant"),
    [
        ("3-m", Registrant(3)),
        ("1023-m", Registrant(1023)),
        ("3-s0", Registrant(3, 0)),
        ("3-s12", Registrant(3, 12)),
        ("1024-m", None),
        ("3", None),
        ("3-s", None),
        ("3-master", None),
        ("-m", None),
        ("3-m\n", None),
    ],
)
def test_who_registered_a_topic(name: str, registrant: Registrant | None) -> None:
    assert Registrant.parse(name) == registrant
    assert registrant is None or str(registrant) == name


@pytest.mark.parametrize(("name", "broker_id"), [("0", 0), ("1023", 1023), ("1024", None), ("x", None), ("", None)])
def test_broker_ids(name: str, broker_id: int | None) -> None:
    assert parse_broker_id(name) == broker_id


@pytest.mark.parametrize(
    ("name", "slave"),
    [("slave0", 0), ("slave12", 12), ("slave", None), ("master", None), ("master_config_checksum", None)],
)
def test_slaves(name: str, slave: int | None) -> None:
    assert parse_slave(name) == slave


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("meta://127.0.0.1:8123", Address("127.0.0.1", 8123)),
        ("meta://[::1]:8123", Address("::1", 8123)),
        ("meta://mq-1.example:1", Address("mq-1.example", 1)),
    ],
)
def test_addresses_there_and_back(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert address_text(address) == text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),  # the master is gone, a slave is there
        ("meta://h:1?slaveId=2", Address("h", 1)),  # what Java readers make of it in memory
        ("meta://h:1/", Address("h", 1)),
    ],
)
def test_addresses_that_others_write(text: str, address: Address | None) -> None:
    assert parse_address(text) == address


def test_no_address() -> None:
    with pytest.raises(ValueError, match="broker address 'nonsense': expected host:port"):
        parse_address("nonsense")


def test_texts_of_topics() -> None:
    assert partition_count_text(2) == "2"
    assert topic_text(2, Registrant(3)) == '{"numParts":2,"broker":"3-m"}'
    assert topic_text(10, Registrant(3, 1)) == '{"numParts":10,"broker":"3-s1"}'


@pytest.mark.parametrize(
    ("text", "count"), [("2", 2), ('{"numParts":2,"broker":"3-m"}', 2), ('{"broker": "3-m", "numParts": 0}', 0)]
)
def test_partitions_of_both_generations(text: str, count: int) -> None:
    assert parse_partition_count(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "true", "{}", '{"numParts":"2"}', '{"numParts":null}', "[2]", "2.5"])
def test_no_number_of_partitions(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of partitions; expected 2 or"):
        parse_partition_count(text)


def test_partitions_are_counted_from_zero() -> None:
    assert list(partitions_of(3, 2)) == [Partition(3, 0), Partition(3, 1)]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("-5468926877571731456-130", GroupOffset(130, -5468926877571731456)),
        ("-1-0", GroupOffset(0)),
        ("17-9223372036854775807", GroupOffset(9223372036854775807, 17)),
        ("0-5", GroupOffset(5, 0)),
        ("-9223372036854775808-1", GroupOffset(1, -9223372036854775808)),
    ],
)
def test_offsets_of_groups(text: str, offset: GroupOffset) -> None:
    assert GroupOffset.parse(text) == offset
    assert str(offset) == text


def test_offset_of_a_group_from_before_message_ids() -> None:
    assert GroupOffset.parse("130") == GroupOffset(130, -1)


@pytest.mark.parametrize("text", ["", "-", "-5", "1-", "1--5", "x-1", "1-9223372036854775808", "9223372036854775808-1"])
def test_no_offset_of_a_group(text: str) -> None:
    with pytest.raises(ValueError, match="is not an offset of a group; expected MESSAGE_ID-OFFSET"):
        GroupOffset.parse(text)


@pytest.mark.parametrize(
    ("text", "hosts", "root"),
    [
        ("zk1:2181", "zk1:2181", "/meta"),
        ("zk1:2181,zk2:2181/meta", "zk1:2181,zk2:2181", "/meta"),
        (" zk1:2181 , zk2:2182/a/b ", "zk1:2181,zk2:2182", "/a/b"),
        ("zk1", "zk1", "/meta"),
        ("[::1]:2181/meta", "[::1]:2181", "/meta"),
    ],
)
def test_where_zookeeper_is(text: str, hosts: str, root: str) -> None:
    assert ZooKeeperAddress.parse(text) == ZooKeeperAddress(hosts, root)
    assert ZooKeeperAddress.parse(str(ZooKeeperAddress(hosts, root))) == ZooKeeperAddress(hosts, root)


@pytest.mark.parametrize(
    "text",
    ["", "/meta", "zk1:0", "zk1:65536", "zk1:x", "zk1,", "zk1:2181/", "zk1:2181//meta", "zk1:2181/meta/", "a b:1"],
)
def test_where_zookeeper_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port,host:port/root"):
        ZooKeeperAddress.parse(text)
