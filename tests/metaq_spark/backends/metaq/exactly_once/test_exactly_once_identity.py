"""Tables: names of batches and branches, what is left over, which broker decides."""

from __future__ import annotations

import pickle

import pytest

from metaq.model import Xid, parse_transaction_id
from metaq_spark.backends.metaq.exactly_once.coordinator import decider
from metaq_spark.backends.metaq.exactly_once.identity import (
    FORMAT_ID,
    BatchName,
    BranchName,
    branch_name,
    by_broker,
    named_write,
    single_write,
    superseded,
)
from metaq_spark.backends.metaq.exactly_once.plan import (
    BATCH_ID,
    QUERY_ID,
    TransactionPlan,
    batch_of_task,
    refreshed_flow,
)
from metaq_spark.backends.metaq.exactly_once.task import branch_limits
from metaq_spark.backends.metaq.options import parse_sink_options
from metaq_spark.errors import BatchSuperseded, BranchLost, ExactlyOnceError, FullRefreshRefused
from metaq_spark.options.table import Use

QUERY = "c0ffee00-0000-4000-8000-000000000001"


def branch(batch_id: int = 7, query: str = QUERY, **more: int) -> Xid:
    numbers = {"task": 0, "attempt": 0, "broker_id": 0, "sequence": 0} | more
    return BranchName(BatchName(query, batch_id), **numbers, nonce="abc123").xid


@pytest.mark.parametrize(
    "name",
    [
        BranchName(BatchName(QUERY, 0), 0, 0, 0, 0, "0"),
        BranchName(BatchName(QUERY, 2**63 - 1), 99_999, 2**40, 1023, 12, "0123456789abcdef"),
        BranchName(named_write("My.App_1-x", 12), 1, 2, 3, 4, "ff"),
        BranchName(named_write("7/8", 12), 1, 2, 3, 4, "ff"),
        BranchName(single_write(), 1, 2, 3, 4, "ff"),
    ],
)
def test_a_branch_is_read_back_from_what_a_broker_lists(name: BranchName) -> None:
    key = parse_transaction_id(str(name.xid))
    assert isinstance(key, Xid)
    assert branch_name(key) == name
    assert not key.unique.isdigit()  # as RECOVER would take it for a timeout


@pytest.mark.parametrize(
    "xid",
    [
        Xid(1, f"{QUERY}/7".encode(), b"0.0.0.0.ab", QUERY),
        Xid(FORMAT_ID, f"{QUERY}/7".encode(), b"0.0.0.0.ab", "another"),
        Xid(FORMAT_ID, QUERY.encode(), b"0.0.0.0.ab", QUERY),
        Xid(FORMAT_ID, f"{QUERY}/x".encode(), b"0.0.0.0.ab", QUERY),
        Xid(FORMAT_ID, f"{QUERY}/7".encode(), b"0.0.0.ab", QUERY),
        Xid(FORMAT_ID, f"{QUERY}/7".encode(), b"0.0.0.0.AB", QUERY),
        Xid(FORMAT_ID, b"", b"", QUERY),
    ],
)
def test_other_programs_branches_are_nobody_s(xid: Xid) -> None:
    assert branch_name(xid) is None
    assert superseded([xid], BatchName(QUERY, 99), ()) == []
    with pytest.raises(ValueError, match="is not a branch of this sink"):
        by_broker([xid])


def test_queries_of_different_kinds_never_have_the_same_name() -> None:
    names = {named_write("x", 0).query, named_write(QUERY, 0).query, QUERY, single_write().query, single_write().query}
    assert len(names) == 5
    assert str(named_write("orders", 3)) == "txnVersion 3 of txnAppId orders"
    assert str(BatchName("q", 3)) == "batch 3 of query q"


OLD, NOW, LATER = branch(6), branch(7), branch(8)
AGAIN = branch(7, attempt=1)
OTHER_QUERY = branch(6, query="another")


@pytest.mark.parametrize(
    ("prepared", "listed", "expected"),
    [
        ([], [], []),
        ([NOW], [NOW], []),
        ([NOW, AGAIN], [AGAIN], [NOW]),
        ([OLD, NOW, LATER], [NOW], [OLD]),
        ([OLD, NOW, LATER], [], [OLD, NOW]),
        ([OTHER_QUERY], [], []),
        ([OLD], [OLD], []),
    ],
)
def test_which_branches_a_decision_supersedes(prepared: list[Xid], listed: list[Xid], expected: list[Xid]) -> None:
    assert superseded(prepared, BatchName(QUERY, 7), listed) == expected


def test_branches_by_broker_keep_the_order_of_the_decision() -> None:
    keys = [branch(task=task, broker_id=broker, sequence=n) for task in (1, 0) for n in range(3) for broker in (5, 2)]
    assert by_broker(keys) == {5: keys[::2], 2: keys[1::2]}
    assert by_broker([]) == {}


@pytest.mark.parametrize(
    ("decided", "expected"),
    [
        ({0: None}, 0),
        ({3: None, 1: None, 2: None}, 1),
        ({1: None, 2: 0}, 2),
        ({1: 4, 2: 5, 3: 5}, 2),
        ({1: 6, 2: 5}, 1),
        ({0: None, 1: 4, 2: None}, 1),
    ],
)
def test_the_broker_that_decided_last_decides_again(decided: dict[int, int | None], expected: int) -> None:
    assert decider(decided) == expected


STREAM, SINGLE = TransactionPlan({}), TransactionPlan({}, BatchName("once-1", 0), single=True)
NAMED = TransactionPlan({}, named_write("orders", 4))
IN_A_STREAM = {QUERY_ID: QUERY, BATCH_ID: "12"}


@pytest.mark.parametrize(
    ("plan", "properties", "expected"),
    [
        (STREAM, IN_A_STREAM, BatchName(QUERY, 12)),
        (SINGLE, {}, SINGLE.batch),
        (NAMED, {}, NAMED.batch),
        (NAMED, IN_A_STREAM, NAMED.batch),
    ],
)
def test_the_batch_of_a_task(plan: TransactionPlan, properties: dict[str, str], expected: BatchName) -> None:
    assert batch_of_task(plan, properties.get) == expected


@pytest.mark.parametrize(
    ("plan", "properties", "words"),
    [
        (STREAM, {}, r"does not tell its tasks sql\.streaming\.queryId and streaming\.sql\.batchId"),
        (STREAM, {QUERY_ID: QUERY}, "does not tell its tasks"),
        (SINGLE, IN_A_STREAM, "a write inside foreachBatch needs the options txnAppId .* and txnVersion"),
    ],
)
def test_a_task_whose_batch_has_no_name(plan: TransactionPlan, properties: dict[str, str], words: str) -> None:
    with pytest.raises(ExactlyOnceError, match=words):
        batch_of_task(plan, properties.get)


@pytest.mark.parametrize(
    ("option", "timeout_s_max", "timeout_s", "age_s_max"),
    [
        ({}, 60, 600, 15.0),
        ({}, 8, 600, 2.0),
        ({}, 3600, 600, 150.0),
        ({"transactionTimeoutMs": "20s"}, 60, 20, 5.0),
        ({"transactionTimeoutMs": "1001"}, 60, 2, 0.5),
        ({"transactionTimeoutMs": "1"}, 60, 1, 0.25),
    ],
)
def test_a_branch_is_prepared_long_before_its_broker_gives_it_up(
    option: dict[str, str], timeout_s_max: int, timeout_s: int, age_s_max: float
) -> None:
    raw = {"brokers": "b:1", "topic": "t", "delivery": "exactly_once"}
    limits = branch_limits(parse_sink_options(raw | option, Use.STREAM_WRITE), timeout_s_max)
    assert (limits.timeout_s, limits.age_s_max) == (timeout_s, age_s_max)


@pytest.mark.parametrize(
    "error", [BranchLost("b:1", "gone"), BatchSuperseded("batch 1 of query q", "late"), ExactlyOnceError("why")]
)
def test_errors_survive_the_way_to_the_driver(error: Exception) -> None:
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("checkpoint", "refreshed"),
    [
        (None, False),
        ("checkpoints/orders/3", False),
        ("file:///data/shop/_checkpoints/to_orders/copy/0", False),
        ("file:///data/shop/_checkpoints/to_orders/copy/1", True),
        ("s3a://bucket/shop/_checkpoints/to_orders/copy/12/", True),
        ("/data/_checkpoints/1", False),
    ],
)
def test_a_flow_of_a_pipeline_that_was_refreshed(checkpoint: str | None, refreshed: bool) -> None:
    found = refreshed_flow(checkpoint)
    assert found == (checkpoint if refreshed else None)
    plan = TransactionPlan({}, refreshed=found)
    later = {QUERY_ID: "q", BATCH_ID: "1"}
    assert batch_of_task(plan, later.get) == BatchName("q", 1)
    first = later | {BATCH_ID: "0"}
    if refreshed:
        with pytest.raises(FullRefreshRefused, match="set the sink's option fullRefresh to write"):
            batch_of_task(plan, first.get)
    else:
        assert batch_of_task(plan, first.get) == BatchName("q", 0)
