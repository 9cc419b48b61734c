"""Every option of both formats: texts that are taken with the value they have, and texts that are refused.

Examples belong to the parsers, so a new row has them. How options contradict each other is at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from examples import in_one_test
from pyspark.sql.types import LongType, StructField, StructType

from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.discovery.name_server import parse_name_servers
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import INT64_MAX, Address, Partition, TopicPartition
from metaq_spark.backends.metaq import options as metaq
from metaq_spark.backends.rocketmq import options as rocketmq
from metaq_spark.columns.value_schema import parse_value_schema
from metaq_spark.errors import OptionError
from metaq_spark.options import values
from metaq_spark.options.positions import Earliest, Group, Latest, Notation, Specific, Timestamps
from metaq_spark.options.table import READ, Option, OptionTable, Use

GIVEN = {"brokers": "b:1", "subscribe": "orders"}
P00, P01 = (TopicPartition("orders", Partition(0, index)) for index in (0, 1))
DAY_MS = 24 * 3600 * 1000

TAKEN: dict[Callable[..., Any], dict[str, object]] = {
    values.addresses: {
        " a:1, [::1]:2,a:1,": (Address("a", 1), Address("::1", 2)),
        "meta://[::1]:8123": (Address("::1", 8123),),
    },
    values.names: {"0, 1,0": ("0", "1")},
    values.path: {" /ca.pem ": "/ca.pem"},
    values.boolean: {"True": True, "FALSE": False},
    values.span: {"3-5": (3, 5), "7": (7, 7)},
    values.broker_ids: {"0, 7,0": frozenset({0, 7})},
    values.pattern: {"orders-.*": re.compile("orders-.*")},
    values.message_types: {"paid,sent_2,paid": ("paid", "sent_2")},
    values.transaction_name: {"daily-1.load_2": "daily-1.load_2"},
    values.duration_ms: {"15m": 900_000, "500 ms": 500, "2D": 2 * DAY_MS, "70": 70},
    values.wait_ms: {"2m": 120_000, "0": 0},
    values.timestamp_ms: {
        "0": 0,
        "1795156200123": 1795156200123,
        "1970-01-02T00:00:00.001+01:00": DAY_MS - 3_600_000 + 1,
        "1970-01-02T00:00Z": DAY_MS,
    },
    values.ordered_partitions: {"1:2; 0:1": (Partition(1, 0), Partition(1, 1), Partition(0, 0))},
    ZooKeeperAddress.parse: {
        "zk1:2181,zk2:2181/mq": ZooKeeperAddress("zk1:2181,zk2:2181", "/mq"),
        " zk1 ": ZooKeeperAddress("zk1", "/meta"),
    },
    parse_name_servers: {"ns1:9876;ns2:9876": (Address("ns1", 9876), Address("ns2", 9876))},
    parse_value_schema: {"id BIGINT": StructType([StructField("id", LongType())])},
    values.field_name: {" _corrupt_record ": "_corrupt_record"},
    str.strip: {" the-key ": "the-key"},
    rocketmq._tags: {"tea || scones": Subscription("tea || scones"), "*": Subscription("*")},
    rocketmq._sql: {"price > 10": Subscription("price > 10", "SQL92")},
    Notation.topic: {" orders ": "orders"},
    Notation.topics: {" a, b-1 ,a": ("a", "b-1")},
    Notation.group: {"billing": "billing"},
    Notation.chosen_columns: {"value, Topic": ("value", "topic")},
    Notation.position: {" EARLIEST ": Earliest(), "latest": Latest(), "Group": Group()},
    Notation.timestamps: {},
    Notation.assignment: {},
}
REFUSED: dict[Callable[..., Any], dict[str, str]] = {
    values.addresses: {"": "expected host:port", "b": "host:port", ",": "host:port", "a:99999": "1..65535"},
    values.names: {" , ": "expected names"},
    values.path: {" ": "the path of a file"},
    values.boolean: {"yes": "expected true or false", "1": "true or false", "": "true or false"},
    values.broker_ids: {"broker-a": "expected broker ids", "": "expected broker ids", "1,": "such as 0,7"},
    values.span: {"5-3": "FIRST-LAST", "all": "from 0 to"},
    values.pattern: {"a(": "not a regular expression", " ": "some text"},
    values.message_types: {"a b": "letters, digits and underscores"},
    values.transaction_name: {"a b": "letters, digits", "x" * 201: "up to 200"},
    values.duration_ms: {"0": "from 1 ms", "15 minutes": "a duration", "400d": "to 366 days", "-1": "a duration"},
    values.wait_ms: {"-1": "a duration"},
    values.timestamp_ms: {
        "yesterday": "ISO 8601",
        "2026-11-20T06:30:00": "does not say in which time zone",
        "1969-12-31T23:59:59Z": "before 1970",
        "-1": "ISO 8601",
        "": "ISO 8601",
    },
    values.ordered_partitions: {
        "0-0": "BROKER_ID:COUNT",
        "0:1;0:2": "each broker once",
        "1024:1": "BROKER_ID:COUNT",
        "0:0": "BROKER_ID:COUNT",
    },
    ZooKeeperAddress.parse: {"": "expected host:port,host:port/root", "zk1:x": "'zk1:x': expected host:port"},
    parse_name_servers: {"ns1": "name server 'ns1': expected host:port", ";": "expected host:port"},
    parse_value_schema: {" ": "expected the name of a field", "id BIGINTEGER": "BIGINTEGER"},
    values.field_name: {" ": "expected the name of a field of valueSchema"},
    str.strip: {},
    rocketmq._tags: {"||": "expected *, or tags with || between"},
    rocketmq._sql: {" ": "expected an expression such as price > 10"},
    Notation.topic: {"a/b": "expected the name of a topic", "a b": "the name of a topic", "t,u": "of a topic"},
    Notation.topics: {"a/b": "expected the name of a topic", "": "expected topic names, separated by commas"},
    Notation.group: {"a/b": "expected the name of a group"},
    Notation.chosen_columns: {
        "value,VALUE": "value is there twice",
        " , ": "expected names",
        "payload": "there is no column payload; a read has topic, broker_",
    },
    Notation.position: {"oldest": "expected earliest, latest, group, or JSON", "{": "not valid JSON"},
    Notation.timestamps: {"5": "expected JSON", "{": "not valid JSON"},
    Notation.assignment: {"[]": 'expected JSON such as {"orders": ["', '{"a": []}': "needs a list of partitions"},
}
TABLES = {"metaq": metaq.TABLE, "rocketmq": rocketmq.TABLE}
ROWS = [pytest.param(table, row, id=f"{name}-{row.name}") for name, table in TABLES.items() for row in table.rows]


def taken(parse: Any) -> Iterator[tuple[str, object]]:
    match parse:
        case values.Whole(_, low, high):
            yield from ((f" {low} ", low), (str(high), high))
        case values.Size(most):
            yield from (("1", 1), ("512 KB", 512 << 10), ("2M", 2 << 20), (str(most), most))
        case values.OneOf():
            yield from ((word.upper(), word) for word in parse.words)
        case values.Name():
            yield "n-1", "n-1"
        case _:
            yield from TAKEN[parse.func if isinstance(parse, partial) else parse].items()


def refused(parse: Any) -> Iterator[tuple[str, str]]:
    match parse:
        case values.Whole(unit, low, high):
            said = f"expected a whole number of {unit} from {low} to {high}"
            yield from ((text, said) for text in (str(low - 1), str(high + 1), "1k", "5s", ""))
        case values.Size(most):
            yield from (("0", "at least 1"), ("-1", "at least 1"), ("lots", "512k, 64m or 1g"))
            if most < INT64_MAX:
                yield str(most + 1), f"expected at most {most} bytes"
        case values.OneOf():
            yield "else", f"expected {', '.join(parse.words[:-1])} or {parse.words[-1]}"
        case values.Name():
            yield "a/b", f"expected the name of a {parse.what}"
        case _:
            yield from REFUSED[parse.func if isinstance(parse, partial) else parse].items()


def a_use(row: Option) -> Use:
    return next(use for use in Use if use in row.uses)


@in_one_test("table, row", ROWS)
def test_what_is_taken(table: OptionTable, row: Option) -> None:
    for text, value in taken(row.parse):
        for key in (row.name, row.name.lower(), row.name.upper()):
            assert table.read({key: text}, a_use(row))[row.field] == value


@in_one_test("table, row", ROWS)
def test_what_is_refused(table: OptionTable, row: Option) -> None:
    for text, words in refused(row.parse):
        with pytest.raises(OptionError, match=re.escape(words)) as caught:
            table.read({row.name: text}, a_use(row))
        assert str(caught.value).startswith(f"option {row.name}: {text!r}: ")


@in_one_test("table, row", ROWS)
def test_a_default_can_be_read_and_the_row_is_documented(table: OptionTable, row: Option) -> None:
    for use in row.uses:
        default = row.default_for(use)
        assert table.read({}, use)[row.field] == (row.parse(default) if default else None)
    assert row.doc.endswith(".")
    assert not re.search(r"(?<![:\w`]){\w+}", row.doc), "a word that the notation lacks"


@in_one_test("table, row", ROWS)
def test_an_option_is_refused_where_it_has_no_use(table: OptionTable, row: Option) -> None:
    for use in set(Use) - row.uses:
        with pytest.raises(OptionError, match=f"option {row.name}: it is for a .*, not for a {use.value}"):
            table.read({row.name: "1"}, use)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_names_are_unique(table: OptionTable) -> None:
    assert len({row.name.lower() for row in table.rows}) == len({row.field for row in table.rows}) == len(table.rows)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        (
            "startingOffsets",
            '{"orders": {"0-0": -2, "0-1": 9223372036854775807}}',
            Specific({P00: -2, P01: 2**63 - 1}),
        ),
        (
            "startingOffsetsByTimestamp",
            '{"orders": {"0-0": 5, "0-1": "1970-01-02T00:00Z"}}',
            Timestamps(of_each_ms={P00: 5, P01: DAY_MS}),
        ),
        ("assign", '{"a": ["0-1", "2-0"]}', {"a": frozenset({Partition(0, 1), Partition(2, 0)})}),
    ],
)
def test_what_names_partitions(name: str, text: str, value: object) -> None:
    [field] = (option.field for option in metaq.OPTIONS if option.name == name)
    assert metaq.TABLE.read({name: text}, Use.BATCH_READ)[field] == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("assign", '{"a": ["0"]}', "BROKER_ID-INDEX"),
        ("assign", '{"a": ["0-1", "0-1"]}', "a partition twice"),
        ("startingOffsets", '{"orders": {"0-0": 9223372036854775808}}', "is no byte offset"),
        ("startingOffsets", '{"a": 1}', "'a' needs an object of partitions"),
        ("startingOffsets", '{"a": {"1": 1}}', "BROKER_ID-INDEX"),
        ("startingOffsets", '{"a": {"0-1": -3}}', "a/0-1: -3 is no byte offset"),
        ("startingOffsets", '{"a": {"0-1": true}}', "a/0-1: True is no byte offset"),
        ("startingOffsets", '{"a": {"0-1": 1.5}}', "a/0-1: 1.5 is no byte offset"),
        ("startingOffsetsByTimestamp", '{"orders": {"0-0": true}}', "is no time"),
        ("startingOffsetsByTimestamp", '{"orders": {"0-0": "now"}}', "orders/0-0: 'now'"),
    ],
)
def test_what_names_partitions_wrongly(name: str, text: str, words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        metaq.TABLE.read({name: text}, Use.BATCH_READ)


@pytest.mark.parametrize(
    ("use", "options", "words"),
    [
        (Use.STREAM_READ, {"subscribePattern": "x"}, "option subscribe, subscribePattern: only one of them"),
        (Use.STREAM_READ, {"assign": '{"a": ["0-0"]}'}, "option subscribe, assign: only one of them"),
        (
            Use.STREAM_READ,
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "5 is above maxOffsetsPerTrigger",
        ),
        (Use.STREAM_READ, {"valueFormat": "json"}, "option valueFormat: json has no effect without valueSchema"),
        (Use.STREAM_READ, {"valueSchema": "a INT"}, "option valueSchema: it has no effect without valueFormat = json"),
        (Use.STREAM_READ, {"mode": "failfast"}, "option mode: it has no effect without valueFormat = json"),
        (
            Use.BATCH_READ,
            {"valueFormat": "json", "valueSchema": "a INT", "columnNameOfCorruptRecord": "bad"},
            "option columnNameOfCorruptRecord: valueSchema has no field bad; add it, as STRING",
        ),
        (
            Use.BATCH_READ,
            {"valueFormat": "json", "valueSchema": "ARRAY<INT>", "columnNameOfCorruptRecord": "bad"},
            "option columnNameOfCorruptRecord: valueSchema has no field bad; add it, as STRING",
        ),
        (
            Use.BATCH_READ,
            {"valueFormat": "json", "valueSchema": "a INT, _corrupt_record INT"},
            "option valueSchema: its field _corrupt_record gets the text of what does not fit; make it STRING",
        ),
        (Use.STREAM_READ, {"onCorrupt": "deadletter"}, "option onCorrupt: it has no effect without deadLetterTopic"),
        (Use.STREAM_READ, {"onCorrupt": "skip", "deadLetterTopic": "d"}, "without onCorrupt = deadletter"),
        (Use.STREAM_READ, {"startingOffsets": "group"}, "option startingOffsets: it has no effect without group"),
        (Use.STREAM_READ, {"commitGroupOffsets": "true"}, "option commitGroupOffsets: it has no effect without group"),
        (Use.BATCH_READ, {"startingOffsets": "latest"}, "cannot start at latest"),
        (Use.BATCH_READ, {"endingOffsets": "earliest"}, "cannot end at earliest"),
        (Use.BATCH_READ, {"endingOffsets": "group"}, "cannot end at earliest or at a group's"),
        (Use.BATCH_WRITE, {"txnAppId": "a", "delivery": "exactly_once"}, "together or not at all"),
        (Use.BATCH_WRITE, {"txnVersion": "1", "delivery": "exactly_once"}, "together or not at all"),
        (Use.BATCH_WRITE, {"txnAppId": "a", "txnVersion": "1"}, "without delivery = exactly_once"),
    ],
)
def test_options_that_contradict_each_other(use: Use, options: dict[str, str], words: str) -> None:
    reads = use in READ
    raw = (GIVEN if reads else {"brokers": "b:1"}) | options
    with pytest.raises(OptionError, match=words):
        metaq.parse_source_options(raw, use) if reads else metaq.parse_sink_options(raw, use)


def test_times_go_before_offsets_and_one_time_before_many() -> None:
    many = '{"orders": {"0-0": 5}}'
    for options, position, name in (
        ({"startingOffsets": "earliest"}, Earliest(), "startingOffsets"),
        ({"startingOffsets": "earliest", "startingOffsetsByTimestamp": many}, Timestamps(of_each_ms={P00: 5}),
         "startingOffsetsByTimestamp"),
        ({"startingTimestamp": "7", "startingOffsetsByTimestamp": many}, Timestamps(7), "startingTimestamp"),
    ):  # fmt: skip
        options = metaq.parse_source_options(GIVEN | options, Use.STREAM_READ)
        assert (options.start, options.start_option) == (position, name)
