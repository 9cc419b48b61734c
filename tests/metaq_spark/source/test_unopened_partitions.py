"""Partitions that a broker offers and does not list, as Java brokers do after a restart: not left out in silence."""

from __future__ import annotations

import json

import pytest
from metaq_harness import NO_EXTENSIONS, Harness

from metaq_spark.errors import DataLoss

REASON = "does not list it.* a Java broker opens some of its partitions only with their next put"


@pytest.fixture
def java() -> Harness:
    """Broker 1 has four partitions of a topic with messages, and after a restart lists only those of orders/1-0."""
    harness = Harness(extensions=NO_EXTENSIONS)
    harness.put("orders", 0, 0, b"a")
    harness.put("orders", 0, 1, b"b")
    harness.put("orders", 1, 0, b"c")
    return harness


def test_a_batch_read_of_a_topic_names_them_in_a_warning(java: Harness, caplog: pytest.LogCaptureFixture) -> None:
    assert sorted(java.batch()) == [b"a", b"b", b"c"]
    assert "orders/1-1: the broker offers this partition but does not list it" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"assign": json.dumps({"orders": ["0-0", "1-1"]})},
        {"startingOffsets": json.dumps({"orders": {"0-0": -2, "0-1": -2, "1-0": -2, "1-1": -2}})},
        {"endingOffsets": json.dumps({"orders": {"0-0": -1, "0-1": -1, "1-0": -1, "1-1": -1}})},
    ],
    ids=["assigned", "in startingOffsets", "in endingOffsets"],
)
def test_a_batch_read_that_names_one_fails(
    java: Harness, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLoss, match=f"^orders/1-1: .*{REASON}"):
        java.batch(**options)
    assert b"a" in java.batch(failOnDataLoss="false", **options)
    assert "orders/1-1" in caplog.text


@pytest.mark.parametrize("options", [{}, {"assign": json.dumps({"orders": ["1-0", "1-1"]})}])
def test_a_stream_warns_and_reads_a_listed_one_from_its_first_byte(
    java: Harness, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stream = java.stream(startingOffsets="earliest", **options)
    position, _ = java.drain(stream)
    assert "orders/1-1" in caplog.text
    java.put("orders", 1, 1, b"older", b"newer")
    _, batches = java.drain(stream, position)
    assert batches == [[b"older", b"newer"]]


def test_a_stream_that_knew_one_is_not_informed_that_the_topic_was_deleted(java: Harness) -> None:
    stream = java.stream(startingOffsets="earliest", lossGraceMs="1s")
    position, _ = java.drain(stream)
    del java.brokers[1].partitions["orders", 0]
    java.micro_batch(stream, position)
    java.clock.advance(2)
    with pytest.raises(DataLoss, match=r"orders/1-0: .*Either it was deleted, or its broker has not opened it since"):
        java.micro_batch(stream, position)


def test_nothing_is_said_of_a_broker_that_lists_all_it_has(caplog: pytest.LogCaptureFixture) -> None:
    ours = Harness()
    ours.put("orders", 0, 0, b"a")
    assert ours.batch(assign=json.dumps({"orders": ["0-0", "1-1"]})) == [b"a"]
    assert caplog.text == ""
