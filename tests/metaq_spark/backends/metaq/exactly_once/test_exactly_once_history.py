"""Tables: what brokers know of a query, and whether that is all that it has written."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from metaq.backends.metaq.transactions import LastDecision
from metaq_spark.backends.metaq.exactly_once.contents import Contents
from metaq_spark.backends.metaq.exactly_once.history import Gap, GapRule, find_gap, missing_brokers
from metaq_spark.backends.metaq.exactly_once.identity import BatchName, named_write, single_write
from metaq_spark.errors import BatchesMissing

QUERY = "c0ffee00-0000-4000-8000-000000000001"
OLDER = LastDecision(5, '{"version":1,"run":"","topics":{}}')
OLDEST = LastDecision(5, "")


def decided(batch_id: int, **brokers: int | None) -> LastDecision:
    """A decision that says which brokers took part, as ``b4``, and what each knew before."""
    return LastDecision(batch_id, Contents({}, "", {int(name[1:]): last for name, last in brokers.items()}).to_json())


@pytest.mark.parametrize(
    ("batch_id", "known", "gap"),
    [
        (0, {4: None}, None),
        (0, {4: None, 7: None}, None),
        (6, {4: decided(5, b4=4)}, None),
        (5, {4: decided(5, b4=4)}, None),
        (4, {4: decided(5, b4=4)}, None),
        (6, {4: OLDER, 7: None}, None),
        (6, {4: OLDEST, 7: LastDecision(2, "")}, None),
        (1, {4: None}, Gap((4,), None, 0)),
        (6, {4: None, 7: None}, Gap((4, 7), None, 5)),
        (6, {4: decided(2, b4=1)}, Gap((4,), 2, 5)),
        (7, {4: OLDER}, Gap((4,), 5, 6)),
        (6, {4: decided(2, b4=1, b7=1), 7: decided(1, b4=0, b7=0)}, Gap((4, 7), 2, 5)),
    ],
)
def test_a_micro_batch(batch_id: int, known: Mapping[int, LastDecision | None], gap: Gap | None) -> None:
    assert find_gap(BatchName(QUERY, batch_id), known) == gap


BOTH = decided(5, b4=4, b7=4)


@pytest.mark.parametrize(
    ("batch_id", "four", "seven", "gap"),
    [
        (6, BOTH, BOTH, None),
        (6, BOTH, decided(4, b4=3, b7=3), Gap((7,), 4, 5, alone=True)),
        (6, decided(2, b4=1, b7=1), BOTH, Gap((4,), 2, 5, alone=True)),
        (6, BOTH, None, Gap((7,), None, 5, alone=True)),
        # repeated: the driver died before it shared the decision, or after it
        (5, BOTH, decided(4, b4=3, b7=3), None),
        (5, BOTH, BOTH, None),
        (5, BOTH, decided(3, b4=2, b7=2), Gap((7,), 3, 4, alone=True)),
        (5, BOTH, None, Gap((7,), None, 4, alone=True)),
        # broker 7 was added, or left out for a while
        (6, decided(5, b4=4), None, None),
        (6, decided(5, b4=4), decided(2, b4=1, b7=1), None),
        (5, decided(5, b4=4, b7=None), None, None),
        (5, decided(5, b4=4, b7=2), decided(2, b4=1, b7=1), None),
    ],
)
def test_one_of_two_brokers(
    batch_id: int, four: LastDecision | None, seven: LastDecision | None, gap: Gap | None
) -> None:
    assert find_gap(BatchName(QUERY, batch_id), {4: four, 7: seven}) == gap


def test_a_broker_that_is_named_no_more_is_not_asked() -> None:
    assert find_gap(BatchName(QUERY, 6), {4: BOTH}) is None


@pytest.mark.parametrize("name", [named_write("daily", 20261126), single_write()])
def test_versions_of_batch_writes_may_have_gaps(name: BatchName) -> None:
    assert find_gap(name, {4: None}) is None
    assert find_gap(BatchName(name.query, 9), {4: decided(2, b4=1)}) is None
    assert find_gap(BatchName(name.query, 9), {4: BOTH, 7: decided(2, b4=1, b7=1)}) == Gap((7,), 2, 5, alone=True)


ADDRESSES = {4: "a:1", 7: "b:1"}


def test_decisions_of_older_versions_name_no_brokers() -> None:
    assert missing_brokers(BatchName(QUERY, 6), {4: OLDER}, "run") == []
    assert missing_brokers(BatchName(QUERY, 6), {4: OLDEST}, "run") == []
    assert missing_brokers(BatchName(QUERY, 6), {4: None}, "run") == []
    assert missing_brokers(BatchName(QUERY, 6), {4: BOTH}, "run") == [7]
    assert missing_brokers(BatchName(QUERY, 5), {4: BOTH}, "run") == []


def test_the_option_lets_one_gap_pass(caplog: pytest.LogCaptureFixture) -> None:
    rule = GapRule((3, 5))
    rule.require_known(BatchName(QUERY, 6), {4: decided(2, b4=1)}, ADDRESSES)  # type: ignore[arg-type]
    assert "because of the option missingBatches" in caplog.text
    for batch_id, last in ((7, 2), (6, 3), (6, 1)):
        with pytest.raises(BatchesMissing):
            rule.require_known(BatchName(QUERY, batch_id), {4: decided(last, b4=0)}, ADDRESSES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        (
            BatchName(QUERY, 6),
            {4: decided(2, b4=1)},
            ["batch 6 of query", "broker 4 (a:1) knows is batch 2.", "move CHECKPOINT --to-batch 2", "= 3-6", "to 3-5"],
        ),
        (BatchName(QUERY, 6), {4: None}, ["(a:1) knows is none.", "--to earliest", "exactly_once before", "to 0-5"]),
        (
            BatchName(QUERY, 6),
            {4: BOTH, 7: None},
            ["broker 7 (b:1) knows is none, but other brokers know batch 5", "copies of the same moment", "to 0-5"],
        ),
        (
            named_write("daily", 6),
            {4: BOTH, 7: decided(3, b4=2, b7=2)},
            ["txnVersion 6 of txnAppId daily", "knows is txnVersion 3, but other brokers know txnVersion 5", "to 4-5"],
        ),
    ],
)
def test_the_sentence_says_what_is_missing_and_what_to_do(
    name: BatchName, known: Mapping[int, LastDecision | None], words: list[str]
) -> None:
    with pytest.raises(BatchesMissing) as refused:
        GapRule((8, 9)).require_known(name, known, ADDRESSES)  # type: ignore[arg-type]
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
