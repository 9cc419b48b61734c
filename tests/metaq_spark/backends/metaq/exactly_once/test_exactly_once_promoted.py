"""A master is lost between the batches of a query, and its slave is promoted: the query stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from exactly_once_harness import QUERY, TOPIC, Harness
from fix_broker import StartBroker
from promoted_pair import PromotedPair

from metaq.model import Partition, TopicPartition
from metaq_spark.backends.metaq.exactly_once.commit import WrittenMessages, commit_batch
from metaq_spark.backends.metaq.exactly_once.contents import Count
from metaq_spark.backends.metaq.exactly_once.history import NO_GAPS, GapRule
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.plan import TransactionPlan
from metaq_spark.errors import BatchesMissing

pytestmark = pytest.mark.process

FIRST = TopicPartition(TOPIC, Partition(4, 0))


@pytest.fixture(params=["pair", "slave"])
def pair(request: pytest.FixtureRequest, start_broker: StartBroker, tmp_path: Path) -> PromotedPair:
    return PromotedPair(start_broker, tmp_path, is_pair=request.param == "pair", topic=TOPIC)


@pytest.fixture
def harness(pair: PromotedPair, start_broker: StartBroker, tmp_path: Path) -> Iterator[Harness]:
    with closing(Harness(start_broker, tmp_path, ())) as made:
        made.addresses = {4: pair.addresses[0]}
        yield made


def stream(harness: Harness, *numbers: int, gaps: GapRule = NO_GAPS) -> None:
    """Write batches of one row each."""
    for number in numbers:
        batch = BatchName(QUERY, number)
        task = harness.task(batch)
        harness.put(task, "4-0", str(number))
        written = WrittenMessages(1, 0, batch, task.finish(), {FIRST: Count(1, number)})
        commit_batch(TransactionPlan(harness.addresses, gaps=gaps), [written], number, harness.sessions)


def test_the_query_stops_and_no_row_is_there_twice(pair: PromotedPair, harness: Harness) -> None:
    stream(harness, 0, 1)
    pair.promote()
    harness.addresses = {4: pair.addresses[1]}
    assert harness.readable("4-0") == ["0", "1"]
    for repeated_or_next, missing in ((1, "0-0"), (2, "0-1")):
        with pytest.raises(BatchesMissing, match=rf"broker 4 \(\S+\) knows is none\..*missingBatches to {missing}"):
            stream(harness, repeated_or_next)
    assert (harness.readable("4-0"), harness.prepared()) == (["0", "1"], {4: 0})
    stream(harness, 2, gaps=GapRule((0, 1)))
    stream(harness, 3)
    assert harness.readable("4-0") == ["0", "1", "2", "3"]
