"""A broker that leaves the route while a query is between two runs: it may have decided the next batch alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from exactly_once_harness import QUERY, TOPIC, Harness, decide
from fix_broker import StartBroker

from metaq.model import Partition, TopicPartition
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, commit_batch
from metaq_spark.backends.metaq.exactly_once.contents import Contents, Count
from metaq_spark.backends.metaq.exactly_once.history import GapRule
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, named_write
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan
from metaq_spark.errors import ParticipantMissing

pytestmark = pytest.mark.process

FOUR, SEVEN = (TopicPartition(TOPIC, Partition(number, 0)) for number in (4, 7))
FOUND = GapRule(found=True)
WORDS = "an earlier run of the query may have written the batch on broker 4, which is none .*goneBrokers to 4"


@pytest.fixture
def harness(start_broker: StartBroker, tmp_path: Path) -> Iterator[Harness]:
    with closing(Harness(start_broker, tmp_path)) as made:
        yield made


def write(
    harness: Harness, batch: BatchName, *places: TopicPartition, run: str = "first", gaps: GapRule = FOUND
) -> None:
    """A batch with a row at each place, as a run of a query commits it."""
    task = harness.task(batch)
    for where in places:
        harness.put(task, str(where.partition), str(batch.batch_id))
    counts = {where: Count(1, batch.batch_id) for where in places}
    message = WrittenMessages(len(places), 0, batch, task.finish(), counts, run)
    plan = TransactionPlan(harness.addresses, None if batch.in_a_stream else batch, gaps=gaps)
    commit_batch(plan, [message], batch.batch_id if batch.in_a_stream else None, harness.sessions)


def decide_alone(harness: Harness, batch: BatchName) -> None:
    """A row at broker 4, which decides; then the driver and the broker are gone."""
    task = harness.task(batch)
    harness.put(task, "4-0", str(batch.batch_id))
    contents = Contents({FOUR: Count(1, batch.batch_id)}, "first")
    with harness.driver() as driver:
        decide(driver, batch, task.finish(), contents)


def without_four(harness: Harness) -> dict[int, object]:
    both = dict(harness.addresses)
    harness.addresses = {7: both[7]}
    return both  # type: ignore[return-value]


@pytest.mark.parametrize(
    "names", [[BatchName(QUERY, 0), BatchName(QUERY, 1)], [named_write("a", 0), named_write("a", 1)]]
)
def test_a_batch_that_a_broker_decided_alone_is_not_decided_by_the_other(
    harness: Harness, names: list[BatchName]
) -> None:
    write(harness, names[0], FOUR, SEVEN)
    decide_alone(harness, names[1])
    both = without_four(harness)
    for _ in range(2):
        with pytest.raises(ParticipantMissing, match=WORDS):
            write(harness, names[1], SEVEN, run="second")
    assert harness.readable("7-0") == ["0"]
    harness.addresses = both  # type: ignore[assignment]
    write(harness, names[1], SEVEN, run="second")
    assert (harness.everything(), harness.prepared()) == ([["0", "1"], ["0"]], {4: 0, 7: 0})


def test_a_run_goes_on_without_a_broker_that_leaves(harness: Harness) -> None:
    """It has decided the batch before itself, so nobody else has decided this one."""
    write(harness, BatchName(QUERY, 0), FOUR, SEVEN)
    without_four(harness)
    write(harness, BatchName(QUERY, 1), SEVEN)
    write(harness, BatchName(QUERY, 2), SEVEN, run="second")
    assert harness.readable("7-0") == ["0", "1", "2"]


def test_a_broker_that_is_gone_for_good_is_named_once(harness: Harness) -> None:
    write(harness, BatchName(QUERY, 0), FOUR, SEVEN)
    without_four(harness)
    with pytest.raises(ParticipantMissing):
        write(harness, BatchName(QUERY, 1), SEVEN, run="second")
    write(harness, BatchName(QUERY, 1), SEVEN, run="second", gaps=GapRule(found=True, gone=frozenset({4})))
    write(harness, BatchName(QUERY, 2), SEVEN, run="third")
    assert harness.readable("7-0") == ["0", "1", "2"]


def test_brokers_that_are_named_may_be_left_out(harness: Harness) -> None:
    write(harness, BatchName(QUERY, 0), FOUR, SEVEN)
    without_four(harness)
    write(harness, BatchName(QUERY, 1), SEVEN, run="second", gaps=GapRule())
    assert harness.readable("7-0") == ["0", "1"]
