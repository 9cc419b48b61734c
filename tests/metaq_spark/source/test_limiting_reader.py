"""The source for Spark before 4.2, called as such a Spark calls it: no start, no limit, and one order of calls."""

from __future__ import annotations

import json
import logging

import pytest
from metaq_harness import Harness, Tree

from metaq.errors import ConnectionFailed
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.errors import DataLoss, OptionError
from metaq_spark.options.table import Use
from metaq_spark.source.limiting_reader import LimitingReader, given_limits
from metaq_spark.spark_version import say_once


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    say_once.cache_clear()


def limiting(harness: Harness, **options: str) -> LimitingReader:
    """A reader of all messages, as a run of a query has it."""
    given = {"startingOffsets": "earliest"} | options
    source = MetaQSource(harness.options(Use.STREAM_READ, **given), harness.pool, harness.clock)
    return LimitingReader(source, given_limits({key.lower(): value for key, value in given.items()}))


class OldQuery:
    """The calls of Spark 4.0 and 4.1, and the two logs of a checkpoint: ends that were planned, and committed ones."""

    def __init__(self, harness: Harness, **options: str) -> None:
        self.harness, self.options = harness, options
        self.planned: list[Tree] = []
        self.committed = 0

    def start(self) -> None:
        """A new run: it repeats a batch that was planned and not committed, as far as ``partitions``."""
        self.reader = limiting(self.harness, **self.options)
        if self.planned:
            self.reader.partitions(self.planned[-1], self.planned[-1])
        self.pending = len(self.planned) > self.committed

    def batch(self, *, dies: bool = False) -> list[bytes] | None:
        """What the next batch reads; ``None`` if there is none. It is not committed if the driver ``dies``."""
        self.harness.clock.advance(1)
        if not self.pending:
            end = json.loads(json.dumps(self.reader.latestOffset()))
            if self.planned and end == self.planned[-1]:
                return None
            self.planned.append(end)
        start = self.planned[-2] if len(self.planned) > 1 else self.reader.initialOffset()
        values = self.harness.values(self.reader, self.reader.partitions(start, self.planned[-1]))
        self.pending = False
        self.committed += not dies
        return values

    def drain(self) -> list[list[bytes]]:
        batches = []
        while (values := self.batch()) is not None:
            batches.append(values)
        return batches


def numbers(*of: range) -> list[bytes]:
    return [b"%d" % n for each in of for n in each]


def test_limits_are_kept_from_the_first_batch_on() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(7)))
    query = OldQuery(harness, maxOffsetsPerTrigger="3")
    query.start()
    assert query.drain() == [numbers(range(3)), numbers(range(3, 6)), numbers(range(6, 7))]
    assert query.batch() is None


def test_a_limit_in_bytes_is_kept() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(6)))
    query = OldQuery(harness, maxBytesPerTrigger="45")
    query.start()
    assert query.drain() == [numbers(range(2)), numbers(range(2, 4)), numbers(range(4, 6))]


def test_the_default_limit_is_not_used() -> None:
    """With availableNow it would end a run early."""
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(6)))
    query = OldQuery(harness)
    query.start()
    object.__setattr__(query.reader._options, "trigger_bytes_max", 45)
    assert query.drain() == [numbers(range(6))]


def test_limits_are_kept_after_a_restart() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(8)))
    query = OldQuery(harness, maxOffsetsPerTrigger="3")
    query.start()
    assert query.batch() == numbers(range(3))
    query.start()
    assert query.drain() == [numbers(range(3, 6)), numbers(range(6, 8))]


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_that_was_not_committed_is_repeated_as_it_was(first: bool) -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(8)))
    query = OldQuery(harness, maxOffsetsPerTrigger="3")
    query.start()
    done = [] if first else [query.batch()]
    lost = query.batch(dies=True)
    harness.put("orders", 0, 0, *numbers(range(8, 10)))
    query.start()
    again = query.drain()
    assert again[0] == lost
    assert [value for values in done + again for value in values] == numbers(range(10))
    assert max(map(len, again)) == 3


def test_a_query_from_latest_reads_what_came_after_its_first_question() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"old")
    query = OldQuery(harness, startingOffsets="latest")
    query.start()
    assert query.batch() == []
    harness.put("orders", 0, 0, b"new")
    harness.put("orders", 0, 1, b"in a new partition")
    assert [value for values in query.drain() for value in values] == [b"new", b"in a new partition"]


def test_the_start_is_settled_by_whichever_question_comes_first() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"old")
    reader = limiting(harness, startingOffsets="latest")
    end = reader.latestOffset()
    harness.put("orders", 0, 0, b"new")
    assert reader.initialOffset() == end


def test_a_topic_without_messages_is_waited_for() -> None:
    harness = Harness()
    query = OldQuery(harness)
    query.start()
    assert query.batch() == []
    harness.put("orders", 0, 0, b"at last")
    assert query.drain() == [[], [b"at last"]]


def test_the_wrapper_of_available_now_is_refused_where_it_would_skip_messages() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1")
    query = OldQuery(harness)
    query.start()
    query.drain()
    reader = limiting(harness)
    reader.latestOffset()
    with pytest.raises(OptionError, match=r"triggerAvailableNowWrapper\.enabled: true: .*set it to false"):
        reader.partitions(query.planned[-1], query.planned[-1])


def test_a_new_query_goes_on_with_the_wrapper_of_available_now() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1")
    reader = limiting(harness)
    end = reader.latestOffset()
    start = reader.initialOffset()
    assert reader.latestOffset() == end
    assert harness.values(reader, reader.partitions(start, end)) == [b"1"]


def test_a_limit_that_may_end_a_run_early_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(9)))
    query = OldQuery(harness, maxOffsetsPerTrigger="3", maxBytesPerTrigger="1m")
    query.start()
    query.drain()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(
        "the first micro-batch ends before the newest message, because of maxBytesPerTrigger and max"
    )


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": "9"}])
def test_nothing_is_said_where_the_first_batch_reads_everything(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *numbers(range(9)))
    query = OldQuery(harness, **options)
    query.start()
    assert query.drain() == [numbers(range(9))]
    assert caplog.records == []


def test_the_first_batch_of_a_run_reports_a_lost_end_as_it_may_be_the_only_one() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1", b"2")
    query = OldQuery(harness)
    query.start()
    query.drain()
    harness.brokers[0].partitions.clear()
    harness.put("orders", 0, 1, b"another")
    query.start()
    with pytest.raises(DataLoss, match="orders/0-0"):
        query.batch()


def test_a_later_batch_does_not_wait_for_a_missing_partition() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1")
    query = OldQuery(harness)
    query.start()
    query.drain()
    store = harness.brokers[0].partitions.pop(("orders", 0))
    assert query.batch() is None
    harness.brokers[0].partitions["orders", 0] = store
    harness.put("orders", 0, 0, b"2")
    assert query.drain() == [[b"2"]]


def test_a_run_does_not_begin_while_a_broker_is_away() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1")
    query = OldQuery(harness, retries="0")
    query.start()
    query.drain()
    harness.brokers[0].running = False
    with pytest.raises(ConnectionFailed):
        query.start()


def test_a_batch_waits_for_the_least_number_of_messages() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1")
    query = OldQuery(harness, minOffsetsPerTrigger="3", maxTriggerDelay="10s")
    query.start()
    assert query.batch() == [b"1"]
    harness.put("orders", 0, 0, b"2")
    assert query.batch() is None
    harness.put("orders", 0, 0, b"3", b"4")
    assert query.batch() == [b"2", b"3", b"4"]


def test_limits_are_found_in_any_case_and_in_order() -> None:
    assert given_limits({"maxoffsetspertrigger": "1", "MAXBYTESPERTRIGGER": "1"}) == (
        "maxBytesPerTrigger",
        "maxOffsetsPerTrigger",
    )
    assert given_limits({"minoffsetspertrigger": "1"}) == ()
