"""Two broker processes that are put back to older copies of their data, between the batches of a query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from exactly_once_harness import QUERY, TOPIC, Harness
from fix_broker import StartBroker

from metaq.model import Partition, TopicPartition
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, commit_batch
from metaq_spark.backends.metaq.exactly_once.contents import Count
from metaq_spark.backends.metaq.exactly_once.history import NO_GAPS, GapRule
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, named_write
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan
from metaq_spark.errors import BatchesMissing

pytestmark = pytest.mark.process

FOUR, SEVEN = (TopicPartition(TOPIC, Partition(number, 0)) for number in (4, 7))


@pytest.fixture
def harness(start_broker: StartBroker, tmp_path: Path) -> Iterator[Harness]:
    with closing(Harness(start_broker, tmp_path)) as made:
        yield made


def write(harness: Harness, batch: BatchName, *, gaps: GapRule = NO_GAPS, only: TopicPartition | None = None) -> None:
    """A batch with a row for each broker, or for one of them."""
    task, counts = harness.task(batch), {}
    for where in (FOUR, SEVEN) if only is None else (only,):
        harness.put(task, str(where.partition), str(batch.batch_id))
        counts[where] = Count(1, batch.batch_id)
    message = WrittenMessages(len(counts), 0, batch, task.finish(), counts)
    plan = TransactionPlan(harness.addresses, None if batch.in_a_stream else batch, gaps=gaps)
    commit_batch(plan, [message], batch.batch_id if batch.in_a_stream else None, harness.sessions)


def stream(harness: Harness, *numbers: int, gaps: GapRule = NO_GAPS) -> None:
    for number in numbers:
        write(harness, BatchName(QUERY, number), gaps=gaps)


def test_all_brokers(harness: Harness) -> None:
    stream(harness, 0, 1)
    harness.copy("two batches")
    stream(harness, 2, 3, 4)
    harness.put_back("two batches")
    said = r"batch 5 of query .* broker 4 \(.*\) and broker 7 \(.*\) knows is batch 1\..*missingBatches to 2-4"
    for _ in range(2):
        with pytest.raises(BatchesMissing, match=said):
            stream(harness, 5)
    assert (harness.everything(), harness.prepared()) == ([["0", "1"]] * 2, {4: 0, 7: 0})
    stream(harness, 5, gaps=GapRule((2, 4)))
    stream(harness, 6)
    assert harness.everything() == [["0", "1", "5", "6"]] * 2


def test_a_repeated_batch(harness: Harness) -> None:
    """Spark's commit of batch 2 was lost: it is repeated, and batch 1 is unknown or not."""
    stream(harness, 0)
    harness.copy("one batch")
    stream(harness, 1)
    harness.copy("two batches")
    stream(harness, 2)
    harness.put_back("one batch")
    with pytest.raises(BatchesMissing, match=r"knows is batch 0\..*missingBatches to 1-1"):
        stream(harness, 2)
    harness.put_back("two batches")
    stream(harness, 2, 3)
    assert harness.everything() == [["0", "1", "2", "3"]] * 2


@pytest.mark.parametrize("broker_id", [4, 7])
def test_one_of_two_brokers(harness: Harness, broker_id: int) -> None:
    harness.copy("no batch")
    stream(harness, 0, 1)
    harness.copy("two batches")
    stream(harness, 2, 3)
    for name, known, missing in (("two batches", "batch 1", "2-3"), ("no batch", "none", "0-3")):
        harness.put_back(name, broker_id)
        said = rf"broker {broker_id} \(\S+\) knows is {known}, but other brokers know batch 3\..*to {missing}"
        with pytest.raises(BatchesMissing, match=said):
            stream(harness, 4)
    stream(harness, 4, gaps=GapRule((0, 3)))
    stream(harness, 5)
    assert sorted(map(len, harness.everything())) == [2, 6]


def test_a_broker_that_got_no_rows_lately(harness: Harness) -> None:
    stream(harness, 0)
    harness.copy("one batch")
    for number in (1, 2):
        write(harness, BatchName(QUERY, number), only=FOUR)
    harness.put_back("one batch", 7)
    with pytest.raises(BatchesMissing, match=r"broker 7 .* knows is batch 0, but other brokers know batch 2"):
        stream(harness, 3)


def test_a_journal_that_is_gone(harness: Harness) -> None:
    stream(harness, 0, 1)
    for broker_id in (4, 7):
        harness.lose_journal(broker_id)
    with pytest.raises(BatchesMissing, match=r"knows is none\..*journal.*exactly_once before.*missingBatches to 0-1"):
        stream(harness, 2)
    assert harness.everything() == [["0", "1"]] * 2


def test_a_named_write_knows_that_one_broker_was_put_back(harness: Harness) -> None:
    write(harness, named_write("daily", 7))
    harness.copy("first")
    write(harness, named_write("daily", 20))
    harness.put_back("first", 7)
    with pytest.raises(BatchesMissing, match=r"txnVersion 31 of .*knows is txnVersion 7, but other .* txnVersion 20"):
        write(harness, named_write("daily", 31))


def test_brokers_that_are_added_and_left_out_are_no_gap(harness: Harness) -> None:
    stream(harness, 0)
    both = dict(harness.addresses)
    harness.addresses = {4: both[4]}
    for number in (1, 2):
        write(harness, BatchName(QUERY, number), only=FOUR)
    harness.addresses = both
    stream(harness, 3, 4)
    harness.addresses = {7: both[7]}
    write(harness, BatchName(QUERY, 5), only=SEVEN)
    assert harness.readable("7-0") == ["0", "3", "4", "5"]
