"""The options of ``format("rocketmq")``, what is refused with which sentence, and what docs/rocketmq.md says."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from metaq_broker.rocketmq.groups.limits import NameRefused
from metaq_broker.rocketmq.groups.limits import check_group as check_group_of_broker

from metaq.backends.rocketmq.names import check_group
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.formats.topic_names import GROUP_BYTES_MAX, rocketmq_fault
from metaq.model import Address, Partition, TopicPartition
from metaq_spark.backends.rocketmq.habits import HABITS
from metaq_spark.backends.rocketmq.options import (
    OPTIONS,
    parse_server_options,
    parse_sink_options,
    parse_source_options,
    source_layout,
)
from metaq_spark.columns.rocketmq.layout import RECORD_COLUMNS
from metaq_spark.errors import OptionError
from metaq_spark.options.positions import Specific
from metaq_spark.options.selection import Assigned
from metaq_spark.options.table import Use

ROOT = Path(__file__).parents[4]
DOCS = (ROOT / "docs" / "rocketmq.md").read_text(encoding="utf-8")
READ_ALL = {"nameServers": "ns1:9876;ns2:9876", "subscribe": "orders"}
WRITE_ALL = {"nameServers": "ns1:9876", "topic": "orders"}


def test_the_page_names_tests_that_are_there() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", DOCS)
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_a_read() -> None:
    options = parse_source_options(READ_ALL, Use.STREAM_READ)
    assert options.name_servers == (Address("ns1", 9876), Address("ns2", 9876))
    assert (options.topics, options.credentials, options.namespace) == (("orders",), None, None)
    assert (options.asking_group, options.subscription.is_all) == ("metaq-spark", True)
    assert (options.pull_messages, options.pulls_in_flight, options.fetch_bytes) == (32, 32, 8 << 20)
    assert pickle.loads(pickle.dumps(options)) == options


def test_queues_are_named_by_broker_and_number() -> None:
    given = READ_ALL | {"startingOffsets": '{"orders": {"broker-a:0": 7, "b:c:1": -2}}'}
    options = parse_source_options(given, Use.BATCH_READ)
    assert options.start == Specific(
        {
            TopicPartition("orders", Partition("broker-a", 0)): 7,
            TopicPartition("orders", Partition("b:c", 1)): -2,
        }
    )
    assigned = {"nameServers": "ns:1", "assign": '{"orders": ["broker-a:3"]}'}
    found = parse_source_options(assigned, Use.BATCH_READ)
    assert found.selection == Assigned({"orders": frozenset({Partition("broker-a", 3)})})


def test_columns_are_chosen() -> None:
    assert tuple(source_layout(READ_ALL).types) == tuple(RECORD_COLUMNS)
    assert source_layout(READ_ALL | {"columns": "value, TAGS"}).ddl == "`value` binary, `tags` string"
    assert source_layout(READ_ALL | {"columns": "value", "valueFormat": "string"}).ddl == "`value` string"


def test_secrets_are_not_shown() -> None:
    keys = {"accessKey": "the-name", "secretKey": "the-key", "securityToken": "the-token"}
    for options in (
        parse_source_options(READ_ALL | keys, Use.BATCH_READ),
        parse_sink_options(WRITE_ALL | keys, Use.BATCH_WRITE),
        parse_server_options({"nameServers": "ns:1"} | keys),
    ):
        assert options.credentials is not None
        assert options.credentials.secret_key == "the-key"
        assert not re.search("the-name|the-key|the-token", f"{options!r} {options}")
        assert not re.search("the-key|the-token", repr(options.credentials))
    with pytest.raises(OptionError) as caught:
        parse_source_options(READ_ALL | {"secretKey": "the-key"}, Use.BATCH_READ)
    assert "the-key" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "t"}, "option nameServers: it is required: host:port of each name server"),
        ({"nameServers": "ns:1"}, "option subscribe: it is required, or instead of it subscribePattern or assign"),
        (READ_ALL | {"assign": '{"t": ["a:0"]}'}, "only one of them can say what to read"),
        (READ_ALL | {"assign": '{"t": ["0-0"]}'}, "expected .*broker-a:0|queue .0-0."),
        (READ_ALL | {"subscribe": "or ders"}, "expected the name of a topic, up to 127 letters, digits and any of"),
        (READ_ALL | {"subscribe": "t" * 128}, "expected the name of a topic, up to 127"),
        (READ_ALL | {"subscribe": "%RETRY%" + "g" * 249}, "expected the name of a topic, up to 127"),
        (READ_ALL | {"group": "g g"}, "expected the name of a group, letters, digits and any of"),
        (
            READ_ALL | {"group": "g" * 97, "namespace": "n" * 96},
            "group, namespace: .*194 bytes in UTF-8 with its n",
        ),
        (READ_ALL | {"tags": "a", "sql": "b > 1"}, "tags, sql: only one of them can say which messages to read"),
        (READ_ALL | {"tags": "||"}, "^option tags: '\\|\\|': expected \\*, or tags with"),
        (READ_ALL | {"namespace": "%RETRY%" + "n" * 121}, "expected the name of a namespace, up to 127 letters"),
        (READ_ALL | {"accessKey": "a"}, "accessKey, secretKey: they are given together or not at all"),
        (READ_ALL | {"securityToken": "a"}, "securityToken: it has no effect without accessKey and secretKey"),
        (READ_ALL | {"tagz": "a"}, "did you mean tags"),
    ],
)
def test_what_a_read_refuses(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse_source_options(given, Use.BATCH_READ)


@pytest.mark.parametrize("tags", ["*", "", "  "])
def test_tags_of_all_messages_do_not_contradict_sql(tags: str) -> None:
    options = parse_source_options(READ_ALL | {"tags": tags, "sql": "b > 1"}, Use.BATCH_READ)
    assert options.subscription == Subscription("b > 1", "SQL92")


@pytest.mark.parametrize("topic", ["t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_topics_as_long_as_rocketmq_allows(topic: str) -> None:
    assert rocketmq_fault(topic, of_groups=True) is None
    assert parse_source_options(READ_ALL | {"subscribe": topic}, Use.BATCH_READ).topics == (topic,)


@pytest.mark.parametrize(("length", "accepted"), [(128, True), (GROUP_BYTES_MAX, True), (GROUP_BYTES_MAX + 1, False)])
def test_connector_client_and_broker_accept_the_same_groups(length: int, accepted: bool) -> None:
    group = "g" * length

    def option() -> None:
        assert parse_source_options(READ_ALL | {"group": group}, Use.BATCH_READ).group == group

    def client() -> None:
        check_group(group, None, GROUP_BYTES_MAX)

    def broker() -> None:
        check_group_of_broker(group)

    checks: list[Callable[[], None]] = [option, client, broker]
    for check in checks:
        refused = pytest.raises((OptionError, ValueError, NameRefused), match=f"{length} bytes")
        with nullcontext() if accepted else refused:
            check()


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("nameServer", "use nameServers"),
        ("nameserver.address", "use nameServers"),
        ("brokers", "use nameServers"),
        ("consumer.topic", "use subscribe"),
        ("consumer.group", "use group"),
        ("subExpression", "use tags"),
        ("pullBatchSize", "use pullMessages and pullsInFlight"),
        ("rocketmq.client.endpoints", "use nameServers"),
        ("rocketmq.source.startup.scan.mode", "use startingOffsets"),
        ("rocketmq.source.filter.sql", "use sql"),
        ("pop", "POP is not supported: a broker that hands messages out to a group cannot give the same ones again"),
        ("localReads", "leave it out"),
        ("kafka.group.id", "leave it out: a query belongs to no group"),
        ("includeHeaders", "use columns, with headers among them"),
    ],
)
def test_habits_of_other_connectors(key: str, advice: str) -> None:
    with pytest.raises(OptionError, match=f"option {re.escape(key)}: {advice}"):
        parse_source_options(READ_ALL | {key: "x"}, Use.BATCH_READ)


def test_habits_point_to_options_that_are_there() -> None:
    names = {option.name for option in OPTIONS} | {"checkpointLocation", "column"}
    for advice in HABITS.values():
        for sentence in (advice,) if isinstance(advice, str) else advice:
            for name in re.findall(r"\buse (?:a )?(\w+)", sentence):
                assert name in names, sentence
    both_ways = {option.name.lower() for option in OPTIONS} & HABITS.keys()
    assert both_ways == {"mode", "subscribe", "topic"}  # the wrong way round


def test_a_write_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="txnAppId: it has no effect without delivery = exactly_once"):
        parse_sink_options(WRITE_ALL | {"txnAppId": "a", "txnVersion": "1"}, Use.BATCH_WRITE)
    with pytest.raises(OptionError, match="txnAppId, txnVersion: they are given together"):
        parse_sink_options(WRITE_ALL | {"txnAppId": "a", "delivery": "exactly_once"}, Use.BATCH_WRITE)
    with pytest.raises(OptionError, match="it says nothing about how to reach the servers"):
        parse_server_options(WRITE_ALL)
