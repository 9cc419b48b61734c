"""Reading options of ``format("metaq")``: defaults, what is required, and what is said of keys that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import Address
from metaq_spark.backends.metaq.options import (
    parse_broker_options,
    parse_sink_options,
    parse_source_options,
    source_layout,
)
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Earliest, Latest
from metaq_spark.options.table import READ, Use

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


@pytest.mark.parametrize("use", list(Use))
@pytest.mark.parametrize("name", ["localReads", "localwrites"])
def test_a_former_option_is_ignored_with_a_warning(name: str, use: Use, caplog: pytest.LogCaptureFixture) -> None:
    parse: Callable[..., object] = parse_source_options if use in READ else parse_sink_options
    given = SOURCE if use in READ else SINK
    assert parse(given | {name: "x"}, use) == parse(given, use)
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "metaq_spark.options.table")
    assert record.getMessage().startswith(f"option {name}: it is without effect, because ")


def test_options_of_sparks_own_are_passed_over() -> None:
    assert stream(checkpointLocation="/some/where", queryName="q") == stream()


@pytest.mark.parametrize(
    ("options", "words"),
    [
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
        ({"kafka.group.id": "x"}, ["option kafka.group.id: leave it out: a query belongs to no group"]),
        ({"includeHeaders": "true"}, ["option includeHeaders: use columns, with headers among them"]),
        ({"Checkpoint": "x"}, ["option Checkpoint: use checkpointLocation"]),
        ({"zzz": "1"}, ["there is no such option. The usual ones of a streaming read: brokers, zookeeper, subscribe"]),
        ({"path": "x"}, ["a topic has no path", "use subscribe"]),
        (
            {"topic": "x"},
            ["option topic", "for a batch write or a streaming write, not for a streaming read; use subscribe"],
        ),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(options: dict[str, str], words: list[str]) -> None:
    with refused(words):
        stream(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"subscribe": "x"},
            ["option subscribe", "for a batch read or a streaming read, not for a streaming write", "topic"],
        ),
        ({"path": "x"}, ["a topic has no path", "use topic"]),
        ({"topik": "x"}, ["did you mean topic?"]),
        ({"includeHeaders": "true"}, ["leave it out: a write takes a column headers"]),
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


def test_zookeeper_instead_of_brokers() -> None:
    options = parse_source_options({"zookeeper": "zk1:2181/mq", "subscribe": "orders"}, Use.STREAM_READ)
    assert (options.brokers, options.zookeeper) == ((), ZooKeeperAddress("zk1:2181", "/mq"))
    assert options.places == ("zk1:2181/mq",)
    for found in (parse_sink_options({"zookeeper": "z"}, Use.BATCH_WRITE), parse_broker_options({"zookeeper": "z"})):
        assert found.zookeeper == ZooKeeperAddress("z", "/meta")


@pytest.mark.parametrize(
    ("options", "words"),
    [
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
