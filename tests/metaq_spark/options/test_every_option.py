"""Every option: a text that is taken with the value it has, and texts that are refused with what is said.

How options contradict each other is at the end; what they do is in the stories.
"""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from metaq.model import Address, Partition, TopicPartition
from metaq_spark.backends.metaq.options import (
    OPTIONS,
    SinkOptions,
    SourceOptions,
    parse_sink_options,
    parse_source_options,
)
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Earliest, Latest, Specific, Timestamps
from metaq_spark.options.table import BATCH_READ, READ, STREAM_READ, Use

GIVEN = {"brokers": "b:1", "subscribe": "orders"}
P00, P01 = (TopicPartition("orders", Partition(0, index)) for index in (0, 1))
NEEDS = {
    "valueFormat": {"valueSchema": "id BIGINT"},
    "valueSchema": {"valueFormat": "json"},
    "onCorrupt": {"deadLetterTopic": "dead"},
    "deadLetterTopic": {"onCorrupt": "deadletter"},
    "commitGroupOffsets": {"group": "g", "zookeeper": "z:1"},
    "txnAppId": {"txnVersion": "1", "delivery": "exactly_once"},
    "txnVersion": {"txnAppId": "a", "delivery": "exactly_once"},
    "tlsCertFile": {"tlsCaFile": "system"},
    "tlsKeyFile": {"tlsCaFile": "system", "tlsCertFile": "c"},
}
"""What an option cannot be given without."""

DAY_MS = 24 * 3600 * 1000

TAKEN: list[tuple[str, str, object]] = [
    ("brokers", "a:1, [::1]:2", (Address("a", 1), Address("::1", 2))),
    ("subscribe", "a,b", ("a", "b")),
    ("subscribePattern", "orders-.*", re.compile("orders-.*")),
    ("assign", '{"a": ["0-1", "2-0"]}', {"a": frozenset({Partition(0, 1), Partition(2, 0)})}),
    ("waitForTopic", "True", True),
    ("requireBrokers", "0, 1,0", ("0", "1")),
    ("startingOffsets", " EARLIEST ", Earliest()),
    ("startingOffsets", '{"orders": {"0-0": -2, "0-1": 9223372036854775807}}', Specific({P00: -2, P01: 2**63 - 1})),
    ("startingTimestamp", "0", 0),
    ("startingTimestamp", "1795156200123", 1795156200123),
    ("startingTimestamp", "1970-01-02T00:00:00.001+01:00", DAY_MS - 3_600_000 + 1),
    ("startingOffsetsByTimestamp", '{"orders": {"0-0": 5, "0-1": "1970-01-02T00:00Z"}}',
     Timestamps(of_each_ms={P00: 5, P01: DAY_MS})),
    ("startingOffsetsByTimestampStrategy", "Latest", "latest"),
    ("endingOffsets", "latest", Latest()),
    ("endingTimestamp", "1970-01-02T00:00:00Z", DAY_MS),
    ("endingOffsetsByTimestamp", '{"orders": {"0-0": 5}}', Timestamps(of_each_ms={P00: 5})),
    ("maxBytesPerTrigger", "64m", 64 << 20),
    ("maxOffsetsPerTrigger", "1", 1),
    ("minOffsetsPerTrigger", "1000", 1000),
    ("maxTriggerDelay", "15m", 900_000),
    ("maxTriggerDelay", "500 ms", 500),
    ("maxTriggerDelay", "2D", 2 * DAY_MS),
    ("maxTriggerDelay", "70", 70),
    ("minPartitions", "8", 8),
    ("minBytesPerPartition", "1", 1),
    ("maxBytesPerPartition", "1g", 1 << 30),
    ("columns", "value, Offset", ("value", "offset")),
    ("messageTypes", "paid,sent_2,paid", ("paid", "sent_2")),
    ("pushFilters", "true", True),
    ("valueFormat", "JSON", "json"),
    ("valueSchema", "id BIGINT", StructType([StructField("id", LongType())])),
    ("attributeFormat", "map", "map"),
    ("failOnDataLoss", "false", False),
    ("proveOffsets", "False", False),
    ("lossGraceMs", "1m", 60_000),
    ("brokerWaitMs", "2m", 120_000),
    ("onCorrupt", "deadletter", "deadletter"),
    ("deadLetterTopic", "dead", "dead"),
    ("group", "billing", "billing"),
    ("commitGroupOffsets", "true", True),
    ("fetchBytes", "512 KB", 512 << 10),
    ("localReads", "false", False),
    ("offsetPollMs", "50", 50),
    ("topic", " orders ", "orders"),
    ("delivery", "EXACTLY_ONCE", "exactly_once"),
    ("transactionTimeoutMs", "5m", 300_000),
    ("txnAppId", "daily-1.load_2", "daily-1.load_2"),
    ("txnVersion", "0", 0),
    ("repeatedBatch", "Accept", "accept"),
    ("missingBatches", "3-5", (3, 5)),
    ("missingBatches", "7", (7, 7)),
    ("orderedPartitions", "1:2; 0:1", (Partition(1, 0), Partition(1, 1), Partition(0, 0))),
    ("blockBytes", "2m", 1 << 21),
    ("blockMessages", "500", 500),
    ("connectTimeoutMs", "1", 1),
    ("requestTimeoutMs", "86400000", DAY_MS),
    ("retries", "0", 0),
    ("retryIntervalMs", "10000", 10_000),
    ("tlsCaFile", "system", "system"),
    ("tlsVerify", "None", "none"),
]  # fmt: skip

REFUSED: list[tuple[str, str, str]] = [
    ("brokers", "", "expected host:port"),
    ("brokers", "b", "host:port"),
    ("zookeeper", "", "zookeeper"),
    ("subscribe", "a/b", "without any of"),
    ("subscribePattern", "a(", "not a regular expression"),
    ("subscribePattern", " ", "some text"),
    ("assign", "[]", 'expected JSON such as {"orders": ["0-0", "0-1"]}'),
    ("assign", '{"a": []}', "needs a list of partitions"),
    ("assign", '{"a": ["0"]}', "BROKER_ID-INDEX"),
    ("assign", '{"a": ["0-1", "0-1"]}', "a partition twice"),
    ("waitForTopic", "yes", "true or false"),
    ("requireBrokers", " , ", "expected names"),
    ("startingOffsets", "oldest", "expected earliest, latest"),
    ("startingOffsets", '{"orders": {"0-0": 9223372036854775808}}', "is no byte offset"),
    ("startingTimestamp", "yesterday", "ISO 8601"),
    ("startingTimestamp", "2026-11-20T06:30:00", "does not say in which time zone"),
    ("startingTimestamp", "1969-12-31T23:59:59Z", "before 1970"),
    ("startingTimestamp", "-1", "ISO 8601"),
    ("startingOffsetsByTimestamp", '{"orders": {"0-0": true}}', "is no time"),
    ("startingOffsetsByTimestamp", '{"orders": {"0-0": "now"}}', "orders/0-0: 'now'"),
    ("startingOffsetsByTimestamp", "5", "expected JSON"),
    ("startingOffsetsByTimestampStrategy", "earliest", "expected error or latest"),
    ("endingOffsets", "later", "expected earliest, latest"),
    ("endingTimestamp", "", "ISO 8601"),
    ("endingOffsetsByTimestamp", "{", "not valid JSON"),
    ("maxBytesPerTrigger", "0", "at least 1"),
    ("maxOffsetsPerTrigger", "0", "from 1 to"),
    ("maxOffsetsPerTrigger", "1k", "whole number of messages"),
    ("minOffsetsPerTrigger", "-5", "from 1 to"),
    ("maxTriggerDelay", "0", "a duration from 1 ms"),
    ("maxTriggerDelay", "15 minutes", "a duration from 1 ms"),
    ("maxTriggerDelay", "400d", "to 366 days"),
    ("minPartitions", "0", "whole number of tasks"),
    ("minPartitions", "100001", "to 100000"),
    ("minBytesPerPartition", "0", "at least 1"),
    ("maxBytesPerPartition", "lots", "512k, 64m or 1g"),
    ("columns", "value,VALUE", "value is there twice"),
    ("columns", " , ", "expected names"),
    ("columns", "payload", "payload"),
    ("messageTypes", "a b", "letters, digits and underscores"),
    ("pushFilters", "1", "true or false"),
    ("valueFormat", "avro", "binary, string or json"),
    ("valueSchema", " ", "expected the name of a field"),
    ("valueSchema", "id BIGINTEGER", "BIGINTEGER"),
    ("attributeFormat", "json", "string or map"),
    ("failOnDataLoss", "no", "true or false"),
    ("proveOffsets", "1", "true or false"),
    ("lossGraceMs", "-1", "a duration"),
    ("brokerWaitMs", "-1", "a duration"),
    ("onCorrupt", "ignore", "fail, skip or deadletter"),
    ("deadLetterTopic", "a b", "a topic name"),
    ("group", "a/b", "the name of a group"),
    ("commitGroupOffsets", "", "true or false"),
    ("fetchBytes", "2g", "at most"),
    ("localReads", "maybe", "true or false"),
    ("offsetPollMs", "0", "from 1 to"),
    ("topic", "a,b", "a topic name"),
    ("delivery", "exactly-once", "at_least_once or exactly_once"),
    ("transactionTimeoutMs", "soon", "a duration"),
    ("txnAppId", "a b", "letters, digits"),
    ("txnAppId", "x" * 201, "up to 200"),
    ("txnVersion", "-1", "from 0 to"),
    ("repeatedBatch", "skip", "fail or accept"),
    ("missingBatches", "5-3", "FIRST-LAST"),
    ("missingBatches", "all", "from 0 to"),
    ("orderedPartitions", "0-0", "BROKER_ID:COUNT"),
    ("orderedPartitions", "0:1;0:2", "each broker once"),
    ("orderedPartitions", "1024:1", "BROKER_ID:COUNT"),
    ("orderedPartitions", "0:0", "BROKER_ID:COUNT"),
    ("blockBytes", "65m", "at most"),
    ("blockMessages", "0", "from 1 to"),
    ("connectTimeoutMs", "5s", "whole number of milliseconds"),
    ("requestTimeoutMs", "86400001", "from 1 to 86400000"),
    ("retries", "1001", "from 0 to 1000"),
    ("retryIntervalMs", "0", "from 1 to 10000"),
    ("tlsCaFile", " ", "the path of a file"),
    ("tlsCaFile", "/no/such/file", "/no/such/file"),
    ("tlsCertFile", " ", "the path of a file"),
    ("tlsCertFile", "/no/such/file", "/no/such/file"),
    ("tlsKeyFile", " ", "the path of a file"),
    ("tlsVerify", "false", "full, ca or none"),
    ("tlsVerify", "ca", "no effect without tlsCaFile"),
]

ELSEWHERE = {"zookeeper", "tlsCertFile", "tlsKeyFile"}
"""Options whose good values need something beside them; see the tests of ZooKeeper and of TLS."""


def use_of(name: str) -> Use:
    [option] = (option for option in OPTIONS if option.name == name)
    return next(use for use in (Use.STREAM_READ, Use.BATCH_READ, Use.BATCH_WRITE) if use in option.uses)


def parsed(name: str, text: str) -> SourceOptions | SinkOptions:
    """The options of a query that has this one, and what it cannot do without."""
    use = use_of(name)
    raw = dict(GIVEN) if use in READ else {"brokers": "b:1"}
    raw |= NEEDS.get(name, {})
    if "zookeeper" in raw or name == "zookeeper":
        del raw["brokers"]
    if name in ("subscribePattern", "assign"):
        del raw["subscribe"]
    raw[name] = text
    return parse_source_options(raw, use) if use in READ else parse_sink_options(raw, use)


@pytest.mark.parametrize(("name", "text", "value"), TAKEN)
def test_what_is_taken(name: str, text: str, value: object) -> None:
    [field] = (option.field for option in OPTIONS if option.name == name)
    assert getattr(parsed(name, text), field) == value


@pytest.mark.parametrize(("name", "text", "words"), REFUSED)
def test_what_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(name, text)
    assert words in str(caught.value)
    assert name in caught.value.option


def test_every_option_is_in_both_tables() -> None:
    names = {option.name for option in OPTIONS}
    assert {name for name, *_ in REFUSED} == names
    assert {name for name, *_ in TAKEN} == names - ELSEWHERE


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
        (Use.STREAM_WRITE, {"txnAppId": "a"}, "it is for a batch write, not for a streaming write"),
    ],
)
def test_options_that_contradict_each_other(use: Use, options: dict[str, str], words: str) -> None:
    reads = use in READ
    raw = (GIVEN if reads else {"brokers": "b:1"}) | options
    with pytest.raises(OptionError) as caught:
        parse_source_options(raw, use) if reads else parse_sink_options(raw, use)
    assert words in str(caught.value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_of_the_other_kind_of_read_is_refused(option) -> None:  # type: ignore[no-untyped-def]
    other = {STREAM_READ: Use.BATCH_READ, BATCH_READ: Use.STREAM_READ}.get(option.uses)
    if other is None:
        assert option.uses >= READ or not option.uses & READ
        return
    with pytest.raises(OptionError, match=f"option {option.name}: it is for a .* read, not for a {other.value}"):
        parse_source_options(GIVEN | {option.name: "1"}, other)


def test_times_go_before_offsets_and_one_time_before_many() -> None:
    many = '{"orders": {"0-0": 5}}'
    for options, position, name in (
        ({"startingOffsets": "earliest"}, Earliest(), "startingOffsets"),
        ({"startingOffsets": "earliest", "startingOffsetsByTimestamp": many}, Timestamps(of_each_ms={P00: 5}),
         "startingOffsetsByTimestamp"),
        ({"startingTimestamp": "7", "startingOffsetsByTimestamp": many}, Timestamps(7), "startingTimestamp"),
    ):  # fmt: skip
        options = parse_source_options(GIVEN | options, Use.STREAM_READ)
        assert (options.start, options.start_option) == (position, name)
