"""The checkpoint's form of an offset."""

from __future__ import annotations

import json

import pytest
from examples import in_one_test
from hypothesis import given
from hypothesis import strategies as st

from metaq.model import Partition, TopicPartition
from metaq_spark.errors import CheckpointError
from metaq_spark.offsets import Progress, ProgressMemory, Since, from_json, read_progress, to_json

LIFE = "0123456789abcdef" * 2
SINCE = '{"v": 4, "topics": {}, "incarnations": {}, "last": {}, "since_ms": %s, "since_brokers": %s}'

partitions = st.builds(
    TopicPartition, st.text(min_size=1), st.builds(Partition, st.integers(0, 1023), st.integers(0, 5000))
)
queues = st.builds(
    TopicPartition,
    st.text(min_size=1),
    st.builds(Partition, st.from_regex(r"[A-Za-z0-9:._-]+", fullmatch=True), st.integers(0, 5000)),
)
offset = st.integers(0, 2**63 - 1)
progress = st.dictionaries(partitions, offset) | st.dictionaries(queues, offset)


def test_the_form() -> None:
    offsets = {
        TopicPartition("orders", Partition(0, 10)): 5,
        TopicPartition("orders", Partition(0, 9)): 123,
        TopicPartition("carts", Partition(1, 0)): 0,
    }
    incarnations = {TopicPartition("orders", Partition(0, 9)): LIFE}
    text = '{"v": 2, "topics": {"carts": {"1-0": 0}, "orders": {"0-9": 123, "0-10": 5}}, "incarnations": %s}'
    assert json.dumps(to_json(offsets, incarnations)) == text % json.dumps({"orders": {"0-9": LIFE}})
    assert json.dumps(to_json(offsets)) == text % "{}"
    assert from_json(json.loads(text % "{}")) == offsets
    assert read_progress(to_json(offsets, incarnations)) == Progress(offsets, incarnations)


def test_the_form_with_the_queues_of_named_brokers() -> None:
    offsets = {
        TopicPartition("orders", Partition("rack:1:b", 10)): 5,
        TopicPartition("orders", Partition("rack:1:b", 9)): 123,
    }
    text = '{"v": 2, "topics": {"orders": {"rack:1:b:9": 123, "rack:1:b:10": 5}}, "incarnations": {}}'
    assert json.dumps(to_json(offsets)) == text
    assert from_json(json.loads(text)) == offsets


def test_the_checkpoint_of_the_other_system_is_refused() -> None:
    queues, partitions = to_json({TopicPartition("t", Partition("b", 1)): 5}), to_json({})
    with pytest.raises(CheckpointError, match="expected BROKER_ID-INDEX"):
        read_progress(queues, Partition.parse)
    partitions["topics"] = {"t": {"0-1": 5}}
    with pytest.raises(CheckpointError, match="expected BROKER_NAME:QUEUE_ID"):
        read_progress(partitions, Partition.parse_queue)


@pytest.mark.parametrize("last", [{}, {TopicPartition("orders", Partition(0, 9)): LIFE}])
def test_when_the_query_began(last: dict[TopicPartition, str]) -> None:
    offsets, since = {TopicPartition("orders", Partition(0, 9)): 5}, Since(1795156200000, frozenset({"1", "0"}))
    tree = to_json(offsets, {}, last, since)
    assert json.dumps(tree).endswith('"since_ms": 1795156200000, "since_brokers": ["0", "1"]}')
    read = read_progress(json.loads(json.dumps(tree | {"moved": True})))
    assert (read.offsets, read.last, read.since, read.moved) == (offsets, last, since, True)
    memory = ProgressMemory()
    assert memory.write(memory.read(tree)) == tree


def test_the_first_form_is_still_read() -> None:
    tree = {"v": 1, "topics": {"orders": {"0-9": 123}}}
    assert read_progress(tree) == Progress({TopicPartition("orders", Partition(0, 9)): 123}, {})


@given(progress, st.dictionaries(partitions, st.text("0123456789abcdef", min_size=32, max_size=32)))
def test_what_is_written_is_read(offsets: dict[TopicPartition, int], incarnations: dict[TopicPartition, str]) -> None:
    written = json.loads(json.dumps(to_json(offsets, incarnations)))
    assert read_progress(written) == Progress(offsets, incarnations)
    assert from_json(written) == offsets


@given(progress)
def test_equal_offsets_give_equal_text(offsets: dict[TopicPartition, int]) -> None:
    shuffled = dict(reversed(offsets.items()))
    assert json.dumps(to_json(shuffled)) == json.dumps(to_json(offsets))


@in_one_test(
    "text, words",
    [
        ('{"v": 5, "topics": {}}', ["newer metaq-spark", "form 5", "upgrade"]),
        ('{"v": 5, "somewhere": "else"}', ["newer metaq-spark"]),
        ('{"v": 2, "topics": {}}', ["expected", "checkpoint of another source"]),
        ('{"v": 1, "topics": {}, "incarnations": {}}', ["expected"]),
        ('{"v": 2, "topics": {}, "incarnations": []}', ["incarnations must map"]),
        ('{"v": 2, "topics": {}, "incarnations": {"a": {"0-0": 7}}}', ["a/0-0: 7 is no valid incarnation"]),
        ('{"v": 2, "topics": {}, "incarnations": {"a": {"0-0": "ABC"}}}', ["32 hexadecimal digits"]),
        ('{"v": 2, "topics": {}, "incarnations": {}, "last": {}}', ["expected"]),
        ('{"v": 3, "topics": {}, "incarnations": {}}', ["expected"]),
        (
            '{"v": 3, "topics": {}, "incarnations": {}, "last": {"a": {"0-0": "7"}}}',
            ["a/0-0: '7' is no valid last message"],
        ),
        ('{"v": 4, "topics": {}, "incarnations": {}, "last": {}, "since_ms": 1}', ["expected"]),
        (SINCE % ("-1", "[]"), ["since_ms is -1"]),
        (SINCE % ("true", "[]"), ["since_ms is True"]),
        (SINCE % ("1", "[0]"), ["since_brokers is [0]"]),
        (SINCE % ("1", '"0"'), ["since_brokers is '0'"]),
        ('{"v": 0, "topics": {}}', ["expected", "checkpoint of another source"]),
        ('{"v": true, "topics": {}}', ["expected"]),
        ('{"topics": {}}', ["expected"]),
        ('{"orders": {"0": 12}}', ["checkpoint of another source", "'orders'"]),
        ('{"v": 1, "topics": {}, "more": 1}', ["expected"]),
        ('{"v": 1, "topics": []}', ["topics must map"]),
        ('{"v": 1, "topics": {"a": 3}}', ["topics must map"]),
        ('{"v": 1, "topics": {"a": {"0": 3}}}', ["BROKER_ID-INDEX"]),
        ('{"v": 1, "topics": {"a": {"0-0": -1}}}', ["a/0-0: -1 is not a byte offset"]),
        ('{"v": 1, "topics": {"a": {"0-0": "1"}}}', ["a/0-0: '1' is not a byte offset"]),
        ('{"v": 1, "topics": {"a": {"0-0": false}}}', ["a/0-0: False is not a byte offset"]),
        ('{"v": 2, "topics": {"a": {"b:0": -1}}, "incarnations": {}}', ["a/b:0: -1 is not a queue offset"]),
        ('{"v": 2, "topics": {"a": {"b:0": 1, "0-0": 1}}, "incarnations": {}}', ["MetaQ", "RocketMQ"]),
        ('{"v": [1], "topics": {}}', ["expected"]),
        ("[]", ["expected"]),
        ("7", ["expected"]),
        ("null", ["expected"]),
    ],
)
def test_what_is_no_offset_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_json(json.loads(text))
    for word in words:
        assert word in str(caught.value)
