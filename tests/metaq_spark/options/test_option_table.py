"""Options as a table: what is accepted, with which value, and what is refused, with which words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import Address, Partition, TopicPartition
from metaq_spark.backends.metaq.options import (
    OPTIONS,
    parse_broker_options,
    parse_sink_options,
    parse_source_options,
    source_layout,
)
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Earliest, Latest, Specific
from metaq_spark.options.table import Use

SOURCE = {"brokers": "127.0.0.1:8123", "subscribe": "orders"}
SINK = {"brokers": "127.0.0.1:8123"}


@contextmanager
def refused(words: list[str]) -> Iterator[None]:
    """The block raises an ``OptionError`` whose text has all ``words``."""
    with pytest.raises(OptionError) as caught:
        yield
    for word in words:
        assert word in str(caught.value)


def stream(**options: str) -> object:
    return parse_source_options(SOURCE | options, Use.STREAM_READ)


def test_defaults_of_a_streaming_read() -> None:
    options = parse_source_options(SOURCE, Use.STREAM_READ)
    assert options.brokers == (Address("127.0.0.1", 8123),)
    assert options.topics == ("orders",)
    assert (options.starting_offsets, options.ending_offsets) == (Latest(), Latest())
    assert (options.trigger_bytes_max, options.fetch_bytes) == (1 << 30, 1 << 20)
    assert options.fail_on_data_loss is True
    assert (options.timeouts.connect_s, options.timeouts.request_s) == (5.0, 30.0)


def test_defaults_of_a_batch_read_and_of_a_write() -> None:
    assert parse_source_options(SOURCE, Use.BATCH_READ).starting_offsets == Earliest()
    assert (
        parse_sink_options(SINK, Use.STREAM_WRITE).topic,
        parse_sink_options(SINK, Use.STREAM_WRITE).block_bytes,
    ) == (None, 1 << 21)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("brokers", " a:1 ,b:2,a:1,", "brokers", (Address("a", 1), Address("b", 2))),
        ("brokers", "meta://[::1]:8123", "brokers", (Address("::1", 8123),)),
        ("subscribe", " a, b-1 ,a", "topics", ("a", "b-1")),
        ("startingoffsets", "Earliest", "starting_offsets", Earliest()),
        ("startingOffsets", " LATEST ", "starting_offsets", Latest()),
        (
            "startingOffsets",
            '{"orders": {"0-1": 123, "3-0": -2, "3-1": -1}}',
            "starting_offsets",
            Specific(
                {
                    TopicPartition("orders", Partition(0, 1)): 123,
                    TopicPartition("orders", Partition(3, 0)): -2,
                    TopicPartition("orders", Partition(3, 1)): -1,
                }
            ),
        ),
        ("maxbytespertrigger", "1048576", "trigger_bytes_max", 1 << 20),
        ("MAXBYTESPERTRIGGER", "64M", "trigger_bytes_max", 64 << 20),
        ("maxBytesPerTrigger", "2gb", "trigger_bytes_max", 2 << 30),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("fetchBytes", "1", "fetch_bytes", 1),
        ("retries", "0", "retries", 0),
        ("requestTimeoutMs", "250", "request_timeout_ms", 250),
        ("checkpointLocation", "/some/where", "topics", ("orders",)),
        ("queryName", "q", "topics", ("orders",)),
    ],
)
def test_values_that_are_read(name: str, text: str, field: str, value: object) -> None:
    assert getattr(stream(**{name: text}), field) == value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": ""}, ["option subscribe", "topic names"]),
        ({"subscribe": "a b"}, ["option subscribe", "'a b'", "without spaces"]),
        ({"brokers": "localhost"}, ["option brokers", "host:port", "localhost"]),
        ({"brokers": ","}, ["option brokers", "host:port"]),
        ({"brokers": "a:99999"}, ["option brokers", "1..65535"]),
        ({"startingOffsets": "first"}, ["option startingOffsets", "'first'", "earliest, latest, group, or JSON"]),
        ({"startingOffsets": "{"}, ["option startingOffsets", "not valid JSON"]),
        ({"startingOffsets": '{"a": 1}'}, ["'a' needs an object of partitions"]),
        ({"startingOffsets": '{"a": {"1": 1}}'}, ["'1'", "BROKER_ID-INDEX"]),
        ({"startingOffsets": '{"a": {"0-1": -3}}'}, ["a/0-1: -3 is no byte offset"]),
        ({"startingOffsets": '{"a": {"0-1": true}}'}, ["a/0-1: True is no byte offset"]),
        ({"startingOffsets": '{"a": {"0-1": 1.5}}'}, ["a/0-1: 1.5 is no byte offset"]),
        ({"maxBytesPerTrigger": "0"}, ["option maxBytesPerTrigger", "at least 1"]),
        ({"maxBytesPerTrigger": "many"}, ["'many'", "512k, 64m or 1g"]),
        ({"maxBytesPerTrigger": "-1"}, ["'-1'", "at least 1"]),
        ({"fetchBytes": "2g"}, ["option fetchBytes", "at most"]),
        ({"failOnDataLoss": "yes"}, ["option failOnDataLoss", "'yes'", "true or false"]),
        ({"retries": "-1"}, ["option retries", "from 0 to 1000"]),
        ({"requestTimeoutMs": "0"}, ["option requestTimeoutMs", "from 1 to"]),
        ({"retryIntervalMs": "20000"}, ["option retryIntervalMs", "from 1 to 10000"]),
        (
            {"startingOffset": "latest"},
            ["option startingOffset", "did you mean startingOffsets or ", "maxBytesPerTrigger"],
        ),
        ({"subscrib": "x"}, ["did you mean subscribe or "]),
        (
            {"kafka.bootstrap.servers": "x"},
            ["option kafka.bootstrap.servers: use brokers: host:port of each broker"],
        ),
        ({"topics": "x"}, ["option topics: use subscribe"]),
        ({"Checkpoint": "x"}, ["option Checkpoint: use checkpointLocation"]),
        ({"localWrites": "x"}, ["option localWrites: leave it out", "not needed any more"]),
        ({"zzz": "1"}, ["there is no such option. The usual ones of a streaming read: brokers, zookeeper, subscribe"]),
        ({"path": "x"}, ["a topic has no path", "use subscribe"]),
        (
            {"topic": "x"},
            ["option topic", "for a batch write or a streaming write, not for a streaming read; use subscribe"],
        ),
        ({"endingOffsets": "latest"}, ["option endingOffsets", "for a batch read, not for a streaming read"]),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(options: dict[str, str], words: list[str]) -> None:
    with refused(words):
        stream(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, ["option startingOffsets", "cannot start at latest"]),
        ({"endingOffsets": "earliest"}, ["option endingOffsets", "cannot end at earliest"]),
        ({"maxBytesPerTrigger": "1m"}, ["option maxBytesPerTrigger", "for a streaming read, not for a batch read"]),
        ({"offsetPollMs": "1"}, ["for a streaming read, not for a batch read"]),
    ],
)
def test_a_wrong_option_of_a_batch_read_is_named(options: dict[str, str], words: list[str]) -> None:
    with refused(words):
        parse_source_options(SOURCE | options, Use.BATCH_READ)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"subscribe": "x"},
            ["option subscribe", "for a batch read or a streaming read, not for a streaming write", "topic"],
        ),
        ({"topic": "a/b"}, ["option topic", "'a/b'"]),
        ({"path": "x"}, ["a topic has no path", "use topic"]),
        ({"blockBytes": "1g"}, ["option blockBytes", "at most"]),
        ({"topik": "x"}, ["did you mean topic?"]),
    ],
)
def test_a_wrong_option_of_a_write_is_named(options: dict[str, str], words: list[str]) -> None:
    with refused(words):
        parse_sink_options(SINK | options, Use.STREAM_WRITE)


@pytest.mark.parametrize("missing", ["brokers", "subscribe"])
def test_what_is_required(missing: str) -> None:
    options = {name: text for name, text in SOURCE.items() if name != missing}
    with pytest.raises(OptionError, match=f"option {missing}: it is required"):
        parse_source_options(options, Use.STREAM_READ)
    with pytest.raises(OptionError, match=f"option {missing}: it is required"):
        source_layout(options)


@pytest.mark.parametrize(
    ("text", "hosts", "root"),
    [
        ("zk1:2181,zk2:2181/mq", "zk1:2181,zk2:2181", "/mq"),
        (" zk1 ", "zk1", "/meta"),
        ("[::1]:2181/a/b", "[::1]:2181", "/a/b"),
    ],
)
def test_zookeeper_instead_of_brokers(text: str, hosts: str, root: str) -> None:
    options = parse_source_options({"zookeeper": text, "subscribe": "orders"}, Use.STREAM_READ)
    assert (options.brokers, options.zookeeper) == ((), ZooKeeperAddress(hosts, root))
    assert options.places == (f"{hosts}{root}",)
    assert parse_sink_options({"zookeeper": text}, Use.BATCH_WRITE).zookeeper == ZooKeeperAddress(hosts, root)
    assert parse_broker_options({"zookeeper": text}).zookeeper == ZooKeeperAddress(hosts, root)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zookeeper": "zk1:x"}, r"option zookeeper: 'zk1:x': expected host:port,host:port/root"),
        ({"zookeeper": ""}, r"option zookeeper: '': expected host:port,host:port/root"),
        ({"zookeeper": "zk1:2181", "brokers": "a:1"}, "option brokers, zookeeper: only one of them can say where"),
        ({}, "option brokers: it is required, or instead of it zookeeper: where the brokers are"),
    ],
)
def test_one_way_to_the_brokers(options: dict[str, str], words: str) -> None:
    read = options | {"subscribe": "orders"}
    for check in (
        lambda: source_layout(read),
        lambda: parse_source_options(read, Use.BATCH_READ),
        lambda: parse_sink_options(options, Use.STREAM_WRITE),
        lambda: parse_broker_options(options),
    ):
        with pytest.raises(OptionError, match=words):
            check()


def test_a_read_is_checked_before_it_is_known_whether_it_streams() -> None:
    source_layout(SOURCE | {"maxBytesPerTrigger": "1m", "startingOffsets": "latest"})
    source_layout(SOURCE | {"endingOffsets": "latest"})
    for wrong in ({"topic": "x"}, {"retries": "x"}, {"nonsense": "x"}):
        with pytest.raises(OptionError):
            source_layout(SOURCE | wrong)


def test_the_table_is_sound() -> None:
    names = [option.name for option in OPTIONS]
    assert len({name.lower() for name in names}) == len(names)
    assert all(option.doc.endswith(".") and option.uses for option in OPTIONS)
