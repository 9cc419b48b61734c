"""Tags: Java's hashes, and that everything that reads tag expressions selects the same messages by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import pyarrow as pa
import pytest
from metaq_broker.rocketmq.pulls.filters import wanted_by_tags
from recordings import lines
from remoting_headers import pull_header

from metaq.backends.rocketmq.groups.group_requests import _subscription
from metaq.client.rocketmq.groups.options import RocketOptions
from metaq.formats.frames import encode_stored
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.properties import TAGS
from metaq.formats.rocketmq.records import read_records
from metaq.formats.rocketmq.tags import TagFilter, tag_hash
from metaq.formats.stored_form import encode_head
from metaq.formats.stored_records import Collected, QueueRecords, Wanted
from metaq.model import Partition, TopicPartition
from metaq.protocols.remoting.headers import to_request
from metaq.testing.rocketmq_answers import BrokerAnswers, Endpoints
from metaq.testing.rocketmq_store import Store, Topic
from metaq_spark.backends.rocketmq.options import parse_source_options
from metaq_spark.backends.rocketmq.source import RocketMQSource
from metaq_spark.columns.rocketmq.batches import RAW_TYPES, RecordBatchMaker
from metaq_spark.errors import OptionError
from metaq_spark.options.table import Use

Found = frozenset[str | None]

MESSAGES: Final = (None, "red", "blue", "*", "a|b", "|b", "red | blue", "| |", "\u3000red", "\xa0red", "标签", "||")
"""The tags of the messages to select from."""

ALL: Final = frozenset(MESSAGES)
EXPRESSIONS: Final[dict[str, frozenset[str | None] | None]] = {
    "*": ALL,
    "": ALL,
    "  ": ALL,
    " * ": ALL,
    "red": frozenset({"red"}),
    "RED": frozenset(),
    "标签": frozenset({"标签"}),
    **dict.fromkeys(
        ("red||blue", "red || blue", "  red  ||  blue ", "red || || blue", "blue||red||blue||", "\tred\n||\x00blue"),
        frozenset({"red", "blue"}),
    ),
    **dict.fromkeys(("red || ", "|| red", "||red||"), frozenset({"red"})),
    "red || *": frozenset({"red", "*"}),
    **dict.fromkeys(("* || *", "*||"), frozenset({"*"})),
    "a|b": frozenset({"a|b"}),
    "a|||b": frozenset({"|b"}),
    "red | blue": frozenset({"red | blue"}),
    "| |": frozenset({"| |"}),
    "\u3000red || \xa0red": frozenset({"\u3000red", "\xa0red"}),
    **dict.fromkeys(("||", "|| ||", " || \t"), None),
}
"""Expression -> the tags that it selects, ``None`` = it is refused."""

SENTENCE: Final = "expected *, or tags with || between, for example red || blue"


def of_group(expression: str) -> Found:
    """A consumer of a group, and any other client."""
    tags = RocketOptions(group="g", topics=["t"], tags=expression).subscription().tags
    return frozenset(filter(tags.matches, MESSAGES))


def of_heartbeat(expression: str) -> Found:
    """A broker that has the heartbeat of a consumer."""
    data = _subscription("t", RocketOptions(group="g", topics=["t"], tags=expression).subscription(), 1)
    assert list(data.code_set) == [tag_hash(tag) for tag in data.tags_set]
    if data.sub_string == "*":
        return ALL
    return frozenset(tag for tag in MESSAGES if tag is not None and tag_hash(tag) in data.code_set)


def of_broker(expression: str) -> Found:
    run = b"".join(
        encode_stored((tag or "").encode(), encode_head(0, 1, 0, bytes(8), 0, 0), _properties(tag), b"")
        for tag in MESSAGES
    )
    collected = Collected(Wanted(100, 1 << 20, 100, wanted_by_tags(expression).tags))
    QueueRecords("t", 0, host_bytes("127.0.0.1", 1)).of_run(run, 0, 0, 0, 99, collected, "t-0")
    return _tags(b"".join(collected.records))


def of_test_broker(expression: str) -> Found:
    store = Store("127.0.0.1", lambda: 1)
    store.topics["t"] = Topic(1, 1)
    messages = [(b"", {} if tag is None else {TAGS: tag}, 0) for tag in MESSAGES]
    store.append("t", 0, messages, port=1, born_ms=1, born=("127.0.0.1", 1))
    asked = to_request(pull_header(0, subscription=expression))
    answer = BrokerAnswers(store, "c").answer(asked, Endpoints(("127.0.0.1", 1), 1))
    if answer.code == 23:
        raise ValueError(SENTENCE)
    return _tags(answer.body)


def of_connector(expression: str) -> Found:
    return _read(_source(expression))


def of_pushed_conditions(expression: str) -> Found:
    """A batch read with condition ``tags = ...``, for each tag; Spark checks again what is not pushed down."""
    from pyspark.sql.datasource import EqualTo

    from metaq_spark.source.pushdown import PushdownReader

    found = _read(_source(expression)) & {None}  # cannot be pushed down
    for tag in filter(None, MESSAGES):
        reader = PushdownReader(_source(expression))
        left = list(reader.pushFilters([EqualTo(("tags",), tag)]))
        assert bool(left) == (tag in ("*", "||")), "no expression names them alone"
        nothing = reader._narrowing is not None and reader._narrowing.types == frozenset()
        read = frozenset() if nothing else _read(cast(RocketMQSource, reader._source))
        found |= read & {tag} if left else read
    return found


def _source(expression: str) -> RocketMQSource:
    options = {"nameServers": "n:1", "subscribe": "t", "tags": expression}
    try:
        return RocketMQSource(parse_source_options(options, Use.BATCH_READ))
    except OptionError as error:
        raise ValueError(str(error)) from None


def _read(source: RocketMQSource) -> Found:
    schema = pa.schema([("tags", RAW_TYPES["tags"])])
    maker = RecordBatchMaker(TopicPartition("t", Partition("b", 0)), schema, None, source.options.subscription.tags)
    batch = maker.batch(len(MESSAGES), {"tags": pa.array(MESSAGES, RAW_TYPES["tags"])})
    return frozenset() if batch is None else frozenset(batch.column("tags").to_pylist())


def _properties(tag: str | None) -> bytes:
    return b"" if tag is None else f"{TAGS}\x01{tag}".encode()


def _tags(records: bytes) -> Found:
    return frozenset(record.property_map().get(TAGS) for record in read_records(records))


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(
    "user",
    [
        *(of_group, of_heartbeat, of_broker, of_test_broker, of_connector),
        pytest.param(of_pushed_conditions, marks=pytest.mark.since("4.1")),
    ],
)
def test_all_select_the_same(user: Callable[[str], Found], expression: str) -> None:
    expected = EXPRESSIONS[expression]
    if expected is None:
        with pytest.raises(ValueError, match=SENTENCE.replace("*", r"\*").replace("|", r"\|")):
            user(expression)
    else:
        assert user(expression) == expected


@pytest.mark.parametrize("expression", [text for text, tags in EXPRESSIONS.items() if tags is not None])
def test_text_and_bytes_are_the_same(expression: str) -> None:
    tags = TagFilter.parse(expression)
    assert [tags.matches((tag or "").encode()) for tag in MESSAGES] == list(map(tags.matches, MESSAGES))


def test_no_expression_is_all_messages() -> None:
    assert TagFilter.parse(None) == TagFilter.parse("*") == TagFilter()
    assert TagFilter().is_all
    assert (TagFilter().names, TagFilter().hashes, TagFilter().encoded) == (None, None, None)


def test_javas_hashes() -> None:
    rows = [row for row in lines("records.jsonl") if "hash" in row]
    assert len(rows) == 6
    assert {row["tag"]: tag_hash(row["tag"]) for row in rows} == {row["tag"]: row["hash"] for row in rows}


def test_the_hash_of_a_character_of_two_units() -> None:
    assert tag_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
