"""Names of partitions, of both systems."""

from __future__ import annotations

import pickle

import pytest

from metaq.model import Partition, TopicPartition

QUEUES = ("broker-a:3", "b:0", "a.b_c-d:17", "rack:1:broker:2", "0-0:3", "7:0")


@pytest.mark.parametrize("text", ["0-3", "1023-0", *QUEUES])
def test_a_name_is_read_as_it_is_printed(text: str) -> None:
    assert str(Partition.parse_any(text)) == text
    assert pickle.loads(pickle.dumps(Partition.parse_any(text))) == Partition.parse_any(text)


def test_the_queue_id_is_behind_the_last_colon() -> None:
    assert Partition.parse_queue("rack:1:broker:2") == Partition("rack:1:broker", 2)


@pytest.mark.parametrize("text", ["", "3", ":3", "a:", "a:x", "a:-1", "a b:1", "a:1 ", "a\n:1", "a:\u0663"])
def test_other_text_is_no_queue(text: str) -> None:
    with pytest.raises(ValueError, match="expected BROKER_NAME:QUEUE_ID"):
        Partition.parse_queue(text)


@pytest.mark.parametrize("text", ["", "3", "0-", "-0", "a-1", "broker-a:3", "0-1-2"])
def test_other_text_is_no_partition(text: str) -> None:
    with pytest.raises(ValueError, match="expected BROKER_ID-INDEX"):
        Partition.parse(text)


def test_partitions_of_a_system_have_an_order_and_a_hash() -> None:
    numbers = [Partition(0, 2), Partition(0, 10), Partition(2, 0), Partition(10, 0)]
    assert sorted(numbers[n] for n in (2, 0, 3, 1)) == numbers
    names = [Partition("a", 2), Partition("a", 10), Partition("b", 0)]
    assert sorted(names[n] for n in (2, 0, 1)) == names
    queues = {TopicPartition("t", name): str(name) for name in (*names, *numbers)}
    assert queues[TopicPartition("t", Partition.parse_any("a:10"))] == "a:10"
    assert Partition("0", 3) != Partition(0, 3)


def test_a_broker_is_an_id_or_a_name() -> None:
    assert (Partition(7, 1).broker_id, Partition("b", 1).broker_name) == (7, "b")
    with pytest.raises(TypeError, match="queue b:1"):
        _ = Partition("b", 1).broker_id
    with pytest.raises(TypeError, match="partition 7-1"):
        _ = Partition(7, 1).broker_name
