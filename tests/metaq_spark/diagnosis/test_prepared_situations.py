"""Prepared situations, each with the verdict and the advice that it must get, and each again with evidence missing.

With less evidence a verdict may become ``unknown`` or ``working``, if what is missing is named, and never another one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from diagnosed import RUN, Prepared

from metaq_spark.diagnosis.evidence import UiEvidence
from metaq_spark.diagnosis.progress import this_machine
from metaq_spark.diagnosis.verdict import QueryVerdict

QUICK = {"addBatch": 40, "walCommit": 6, "commitOffsets": 6, "latestOffset": 2, "queryPlanning": 3}
SLOW_SINK = {"addBatch": 900, "walCommit": 20, "commitOffsets": 20, "latestOffset": 2, "queryPlanning": 3}
WAITS = "Waiting for data to arrive"
STATE = {"operatorName": "stateStoreSave", "numShufflePartitions": 2, "memoryUsedBytes": 5000, "customMetrics": {}}


@dataclass(frozen=True)
class Case:
    """A situation: how it is made, its verdict and rule, words of the advice, and words of the sentence."""

    make: Callable[[Prepared], object]
    verdict: str
    rule: str
    advice: str
    sentence: str = ""


def all_read(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100).status(WAITS)
    query.looked({"0-0": (0, 1000)})


def assigned_and_grown(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100).status(WAITS)
    query.options["assign"] = '{"orders": ["0-0"]}'
    query.looked({"0-0": (0, 1000), "0-1": (0, 700)}, seconds=90)


def puts_refused(query: Prepared) -> None:
    all_read(query)
    query.faults(("broker 127.0.0.1:8123 disk", "/srv: 0.1 GiB free; it refuses puts, which need 1.0 GiB"))


def nothing_selected(query: Prepared) -> None:
    query.options["messageTypes"] = "Paid"
    query.batches(10, 5, 0.5, 100).started(200).reports(10, 5, 100, 0, QUICK).status(WAITS)
    query.looked({"0-0": (0, 1000)}, types={"paid": 20})


def retention_passed(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100)
    query.ended(50, "...\norg.apache.spark.SparkException: orders/0-0: offset 1000 was to be read next")
    query.looked({"0-0": (5000, 6000)}, seconds=3000)


def recreated(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100).status(WAITS)
    query.looked({"0-0": (0, 500)}, incarnations={"0-0": "b" * 32})


def beyond_the_end(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100).status(WAITS)
    query.looked({"0-0": (0, 500)})


def a_batch_runs(query: Prepared) -> None:
    query.batches(10, 5, 2, 100).batch(10, 1.5, None, {"0-0": 1100}).started(200).reports(10, 5, 100, 10, QUICK)
    query.status("Processing new data", for_s=1, active=True).looked({"0-0": (0, 1100)}, seconds=2)


def slow_batch(query: Prepared) -> None:
    query.batches(10, 5, 2, 100, until_s=300).batch(10, 300, None, {"0-0": 1100}).started(900)
    query.reports(10, 5, 100, 10, QUICK, until_s=300).status("Processing new data", for_s=300, active=True)
    query.looked({"0-0": (0, 9000)}, seconds=300)


def skewed_batch(query: Prepared) -> None:
    ends = {f"0-{index}": 1000 + (100_000 if index == 3 else 100) for index in range(4)}
    query.batches(10, 5, 2, 100, until_s=300, names=tuple(ends)).batch(10, 300, None, ends).started(900)
    query.status("Processing new data", for_s=300, active=True)
    query.looked({name: (0, end) for name, end in ends.items()}, seconds=300)


def broker_away_in_a_batch(query: Prepared) -> None:
    query.batches(10, 5, 2, 100, until_s=300).batch(10, 300, None, {"0-0": 1100}).started(900)
    query.status("Processing new data", for_s=300, active=True)
    query.looked({}, at={}, away={"127.0.0.1:8123": "127.0.0.1:8123 did not answer within 3 s"})


def no_free_core(query: Prepared) -> None:
    slow_batch(query)
    query.ui = UiEvidence(query.now_ms, 2, 0, 4, 2, 1, other_jobs=2)


def next_trigger_is_due(query: Prepared) -> None:
    query.batches(5, 3600, 2, 100, until_s=-2700).started(20_000)
    query.progress(4, 898, QUICK, 10, ({"0-0": 400}, {"0-0": 500}, {"0-0": 500}))
    query.status("Waiting for next trigger", trigger="ProcessingTimeTrigger(3600000)")
    query.looked({"0-0": (0, 900)}, seconds=800)


def available_now_is_done(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=1000).started(1100).reports(10, 5, 100, 10, QUICK, until_s=1000)
    query.event("status", 1010, status={"message": "Processing new data"}, trigger="AvailableNowTrigger")
    query.ended(990).looked({"0-0": (0, 9000)}, seconds=900)


def moved_and_run_once(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=1000)
    tree = {"v": 2, "topics": {"orders": {"0-0": 0}}, "incarnations": {}, "moved": True}
    query.batch(10, 900, 0.5, json.dumps(tree)).started(910)
    query.event("status", 905, status={"message": "Processing new data"}, trigger="AvailableNowTrigger")
    query.ended(890).looked({"0-0": (0, 1000)}, at={"0-0": 0}, seconds=3000)


def available_now_and_made_again(query: Prepared) -> None:
    available_now_is_done(query)
    query.looked({"0-0": (0, 500)}, incarnations={"0-0": "b" * 32}, seconds=900)


def available_now_and_removed(query: Prepared) -> None:
    available_now_is_done(query)
    query.looked({"0-0": (5000, 6000)}, seconds=900)


def large_batch(query: Prepared) -> None:
    mib = 1 << 20
    query.batches(10, 5, 0.5, mib, until_s=3600).batch(10, 60, None, {"0-0": 810 * mib}).started(70)
    query.status("Processing new data", for_s=55, active=True)
    query.looked({"0-0": (0, 820 * mib)}, seconds=3600, before=(60, {"0-0": 810 * mib}))


def started_after_an_hour(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=3600).batch(10, 8, None, {"0-0": 73_000}).started(20)
    query.status("Processing new data", for_s=6, active=True)
    query.looked({"0-0": (0, 73_400)}, seconds=3590, before=(8, {"0-0": 73_000}))


def broker_frozen(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100)
    query.status("Getting offsets from PythonMicroBatchStream@1", for_s=80, active=True)
    query.looked({}, at={}, away={"127.0.0.1:8123": "127.0.0.1:8123 did not answer within 3 s"})


def fails_again(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).batch(10, 100, None, {"0-0": 1100}).started(200)
    query.reports(10, 5, 100, 10, QUICK, until_s=100)
    for number, ago_s in enumerate((90, 60, 30)):
        query.started(ago_s, run=f"run-{number}")
        query.ended(ago_s - 5, "Traceback\n  File x\nValueError: no number: 'x'", run=f"run-{number}")
    query.looked({"0-0": (0, 1100)}, seconds=100)


def failed_once(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100)
    query.ended(50, "java.io.IOException: No space left on device").looked({"0-0": (0, 1000)})


def waits_for_messages(query: Prepared) -> None:
    query.options["minOffsetsPerTrigger"] = "1000"
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100).event(
        "idle", 5
    ).status(WAITS)
    query.looked({"0-0": (0, 1500)}, seconds=80)


def killed(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=1000).started(1100).reports(10, 5, 100, 10, QUICK, until_s=1000)
    for ago_s in (1015, 1010, 1005):
        query.event("status", ago_s, status={"message": WAITS})
    query.looked({"0-0": (0, 9000)}, seconds=900)


def stopped(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=1000).started(1100).reports(10, 5, 100, 10, QUICK, until_s=1000).ended(990)
    query.looked({"0-0": (0, 9000)}, seconds=900)


def falls_behind(query: Prepared) -> None:
    query.batches(20, 2, 1.9, 100).started(900).reports(20, 2, 100, 10, SLOW_SINK, unread=90_000)
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))


def state_is_slow(query: Prepared) -> None:
    states = [{**STATE, "allUpdatesTimeMs": 700, "commitTimeMs": 600, "numRowsTotal": 5_000, "numRowsRemoved": 5}]
    query.batches(20, 2, 1, 100).started(900).reports(20, 2, 100, 10, SLOW_SINK, states=states)
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))


def checkpoint_is_slow(query: Prepared) -> None:
    query.batches(20, 2, 1, 100).started(900)
    query.reports(20, 2, 100, 10, {"addBatch": 100, "walCommit": 400, "commitOffsets": 400, "latestOffset": 2})
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))


def offsets_are_slow(query: Prepared) -> None:
    query.batches(20, 2, 1, 100).started(900)
    query.reports(20, 2, 100, 10, {"addBatch": 100, "walCommit": 40, "commitOffsets": 40, "latestOffset": 800})
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))


def planning_is_slow(query: Prepared) -> None:
    query.batches(20, 2, 1, 100).started(900)
    query.reports(20, 2, 100, 10, {"addBatch": 100, "walCommit": 40, "commitOffsets": 40, "queryPlanning": 800})
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))


def catches_up(query: Prepared) -> None:
    query.batches(20, 2, 1, 1000).started(900)
    for number in range(12, 20):
        size = 1000 + 300 * (number % 2)
        start, end = {"0-0": 20_000 - size}, {"0-0": 20_000}
        query.progress(number, 2 * (20 - number) - 1, QUICK, size // 10, (start, end, {"0-0": 30_000}))
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 30_000)}, seconds=900, before=(40, {"0-0": 29_000}))


def limited(query: Prepared) -> None:
    query.batches(20, 2, 0.5, 1000).started(900).reports(20, 2, 1000, 100, QUICK, unread=10_000)
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 30_000)}, seconds=900, before=(40, {"0-0": 29_000}))


def event_time(ago_s: float, watermark_s: float) -> dict[str, str]:
    from diagnosed import NOW_MS, text_of

    return {"max": text_of(int(NOW_MS - ago_s * 1000)), "watermark": text_of(int(NOW_MS - watermark_s * 1000))}


def watermark_stands(query: Prepared) -> None:
    states = [{**STATE, "numRowsTotal": 50, "numRowsRemoved": 0}]
    query.batches(10, 5, 0.5, 100).started(200)
    query.reports(10, 5, 100, 10, QUICK, states=states, eventTime=event_time(9_000_000, 9_000_600))
    query.status(WAITS).looked({"0-0": (0, 1000)})


def a_source_is_silent(query: Prepared) -> None:
    query.started(200)
    for number in range(10):
        first, second = {"0-0": 100 * (number + 1)}, {"bills/0-0": 500}
        query.batch(number, 5 * (10 - number), 0.5, first, second)
        moved = ({"0-0": 100 * number}, first, first)
        query.progress(
            number,
            5 * (10 - number) - 0.4,
            QUICK,
            10,
            moved,
            (second, second, second),
            source_rows=[10, 0],
            eventTime=event_time(5, 4000),
            states=[{**STATE, "numRowsTotal": 10, "numRowsRemoved": 1}],
        )
    query.status(WAITS).looked({"0-0": (0, 1000), "bills/0-0": (0, 500)}, at={"0-0": 1000, "bills/0-0": 500})
    assert query.brokers is not None
    lags = query.brokers.looks[0].lags[1]
    query.brokers.looks[0].lags.update({1: lags[1:], 2: lags[:1]})  # type: ignore[attr-defined]


def late_rows(query: Prepared) -> None:
    states = [{**STATE, "numRowsTotal": 50, "numRowsRemoved": 3, "numRowsDroppedByWatermark": 4}]
    query.batches(10, 5, 0.5, 100).started(200)
    query.reports(10, 5, 100, 10, QUICK, states=states, eventTime=lambda number: event_time(60 - number, 90 - number))
    query.status(WAITS).looked({"0-0": (0, 1000)})


def future_row(query: Prepared) -> None:
    states = [{**STATE, "numRowsTotal": 50, "numRowsRemoved": 3, "numRowsDroppedByWatermark": 4}]
    query.batches(10, 5, 0.5, 100).started(200)
    query.reports(10, 5, 100, 10, QUICK, states=states, eventTime=event_time(-90_000, -80_000))
    query.status(WAITS).looked({"0-0": (0, 1000)})


def state_grows(query: Prepared) -> None:
    def states(number: int) -> list[dict[str, Any]]:
        return [{**STATE, "operatorName": "dedupe", "numRowsTotal": 1000 * (number + 1), "numRowsRemoved": 0}]

    query.batches(10, 5, 0.5, 100).started(200).reports(10, 5, 100, 10, QUICK, states=states)
    query.status(WAITS).looked({"0-0": (0, 1000)})


def two_drivers(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(300).reports(10, 5, 100, 10, QUICK, until_s=100)
    error = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log"
    query.ended(100, error).looked({"0-0": (0, 1500)}, seconds=90)


def half_written(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).batch(10, 100, None, {"0-0": 1100})
    (query.folder / "offsets" / "10").write_bytes(b"v1\n{")


def empty_commit(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100)
    (query.folder / "commits" / "9").write_bytes(b"")


def not_ours(query: Prepared) -> None:
    for number in range(3):
        query.batch(number, 100 - number, 0.5, json.dumps({"orders": {"0": 12 + number}}))


def moved_by_hand(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100)
    tree = {"v": 2, "topics": {"orders": {"0-0": 0}}, "incarnations": {}, "moved": True}
    query.batch(10, 20, None, json.dumps(tree)).looked({"0-0": (0, 1000)}, at={"0-0": 1000})


def killed_before_a_new_partition(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=1000).started(1100).reports(10, 5, 100, 10, QUICK, until_s=1000).ended(990)
    query.looked({"0-0": (0, 1000), "0-1": (0, 300)}, seconds=900)


def a_partition_is_new(query: Prepared) -> None:
    query.batches(10, 5, 0.5, 100, until_s=100).started(200).reports(10, 5, 100, 10, QUICK, until_s=100).status(WAITS)
    query.looked({"0-0": (0, 1000), "0-1": (0, 70)}, seconds=2)


def just_started(query: Prepared) -> None:
    (query.folder / "offsets").mkdir()
    query.started(2)


CASES = {
    "a query has just started": Case(just_started, "working", "B14", "Nothing to do", "started 2.0 s ago"),
    "a new partition waits for a query that has ended": Case(
        killed_before_a_new_partition, "gone", "B11", "Start the query again"
    ),
    "a partition is new": Case(a_partition_is_new, "working", "C12", "Nothing to do", "finds it by itself"),
    "all is read": Case(all_read, "idle", "A1", "look at the producer"),
    "only partitions that assign leaves out grow": Case(
        assigned_and_grown, "idle", "A2", "Add 0-1 to the option assign"
    ),
    "a broker refuses messages": Case(puts_refused, "idle", "A3", "make space on the disk of broker 127.0.0.1:8123"),
    "the filter matches nothing": Case(nothing_selected, "idle", "A4", "'paid'", "selects 'Paid'"),
    "retention has passed the query": Case(retention_passed, "failed", "A5", "failOnDataLoss=false", "removed 3.9 KiB"),
    "the topic was made again": Case(recreated, "stuck", "A6", "Was the topic deleted"),
    "the query is beyond the end": Case(beyond_the_end, "stuck", "A6", "restored from an old copy", "ends at 500"),
    "a batch runs": Case(a_batch_runs, "working", "B1", "Nothing to do", "Batch 10 has been running for 1.5 s"),
    "a batch is slow": Case(slow_batch, "stuck", "B2", "page Stages", "usual are 2.0 s"),
    "a batch is skewed": Case(skewed_batch, "stuck", "B6", "minPartitions", "orders/0-3 has 100%"),
    "the broker went away in a batch": Case(broker_away_in_a_batch, "stuck", "B7", "Look at 127.0.0.1:8123"),
    "no core is free": Case(no_free_core, "stuck", "B5", "fair scheduler pools", "no core is free"),
    "the next trigger is due later": Case(
        next_trigger_is_due, "waiting", "B3", "shorter interval", "the next one is due"
    ),
    "availableNow is done": Case(available_now_is_done, "waiting", "B3", "must be started again", "availableNow"),
    "availableNow ended behind a move": Case(
        moved_and_run_once, "waiting", "B3", "must be started again", "ended after the batch that moved the query"
    ),
    "availableNow is done, and the topic was made again": Case(
        available_now_and_made_again, "gone", "A6", "Was the topic deleted", "created again"
    ),
    "availableNow is done, and retention has passed it": Case(
        available_now_and_removed, "gone", "A5", "failOnDataLoss=false", "removed 3.9 KiB"
    ),
    "a batch is large": Case(large_batch, "working", "B1", "Nothing to do", "holds 800 times as much as others"),
    "a query was started after an hour": Case(started_after_an_hour, "working", "B1", "Nothing to do"),
    "the broker is frozen": Case(broker_frozen, "stuck", "B4", "Look at 127.0.0.1:8123", "asking for offsets for 80 s"),
    "the same batch fails again": Case(fails_again, "failed", "B8", "Restarting does not help", "no number: 'x'"),
    "the run failed": Case(failed_once, "failed", "B12", "Correct what the error names", "No space left"),
    "minOffsetsPerTrigger": Case(waits_for_messages, "waiting", "B10", "Lower minOffsetsPerTrigger", "1000 messages"),
    "the driver was killed": Case(killed, "gone", "B11", "Start the query again", "silent"),
    "the query was stopped": Case(stopped, "gone", "B11", "Start the query again", "ended without an error"),
    "moved, and not started since": Case(moved_by_hand, "waiting", "B13", "Start the query"),
    "falling behind, for its sink": Case(falls_behind, "falling behind", "C4", "format('noop')", "95%"),
    "falling behind, for its state": Case(state_is_slow, "falling behind", "C5", "RocksDB"),
    "falling behind, for its checkpoint": Case(checkpoint_is_slow, "falling behind", "C2", "faster file system"),
    "falling behind, for its look-ups": Case(offsets_are_slow, "falling behind", "C1", "answer faster"),
    "falling behind, for its plan": Case(planning_is_slow, "falling behind", "C3", "The plan is large"),
    "catching up": Case(catches_up, "catching up", "C11", "Wait"),
    "catching up, at a limit": Case(limited, "catching up", "C11", "Wait", "a limit, which allows 500 bytes a second"),
    "the watermark stands": Case(watermark_stands, "idle", "D1", "Are all events old"),
    "a source is silent": Case(a_source_is_silent, "idle", "D2", "multipleWatermarkPolicy"),
    "late rows are dropped": Case(late_rows, "idle", "D3", "longer delay"),
    "a row of the future": Case(future_row, "idle", "D4", "correct the clock", "in the future"),
    "the state grows": Case(state_grows, "idle", "E1", "a watermark", "from 6,000 to 10,000 rows"),
    "two drivers": Case(two_drivers, "failed", "F1", "Stop one of them"),
    "a half written file": Case(half_written, "failed", "F4", "move offsets/10", "cut off"),
    "an empty file": Case(empty_commit, "failed", "F4", "move commits/9", "is empty"),
    "a checkpoint of Kafka": Case(not_ours, "not ours", "F0", "query's progress"),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict_and_advice(name: str, tmp_path: Path) -> None:
    case, query = CASES[name], Prepared(tmp_path)
    case.make(query)
    found = query.judged()
    assert (found.verdict, found.rule) == (case.verdict, case.rule), found.text()
    assert case.advice in found.advice, found.text()
    assert case.sentence in " ".join(one.sentence for one in found.findings), found.text()
    assert found.command, found.text()
    assert "{" not in found.text().replace("{'", "")
    json.dumps(found.tree())


ALSO_TRUE = {("waiting", "gone"), ("failed", "idle")}
"""A run that has ended is gone, whether or not it was one of availableNow; where nothing is unread, all is read."""

MISSING = ("P", "B", "S", "PS", "PB", "BS", "PBS", "C", "CS", "CB", "U")


@pytest.mark.parametrize("name", CASES)
def test_with_less_evidence_the_verdict_is_never_wrong(name: str, tmp_path: Path) -> None:
    case, query = CASES[name], Prepared(tmp_path)
    case.make(query)
    for without in MISSING:
        if "C" in without and not query.events:
            continue  # nothing is left
        found = query.judged(without)
        assert "?;" not in found.text(), without
        if found.verdict == case.verdict:
            continue
        named = {str(one.kind) for one in found.missing}
        given = set(without.replace("S", "SP"))  # a status is a report
        assert named & given, f"{found.verdict} without {without}: {found.text()}"
        modest = found.verdict in (QueryVerdict.UNKNOWN, QueryVerdict.WORKING)
        assert modest or (case.verdict, found.verdict) in ALSO_TRUE, f"without {without}: {found.text()}"


def test_a_query_with_pauses_is_not_told_that_its_sink_is_slow(tmp_path: Path) -> None:
    """Also if nobody has asked the brokers, so that it is not known that the limit of its batches holds it back."""
    query = Prepared(tmp_path)
    limited(query)
    assert "C4" not in {one.rule for one in query.judged("B").findings}


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 20
    assert {case.verdict for case in CASES.values()} == set(QueryVerdict) - {QueryVerdict.UNKNOWN}


def test_the_run_is_that_of_the_reports(tmp_path: Path) -> None:
    query = Prepared(tmp_path)
    all_read(query)
    assert query.judged().tree()["run_id"] == RUN


def test_a_driver_whose_clock_is_ahead_is_not_known_to_live(tmp_path: Path) -> None:
    query = Prepared(tmp_path)
    query.batches(10, 5, 0.5, 100, until_s=1000).started(1100).reports(10, 5, 100, 10, QUICK, until_s=1000)
    for ago_s in (-290, -295, -300):
        query.event("status", ago_s, status={"message": WAITS})
    query.looked({"0-0": (0, 9000)}, seconds=900)
    found = query.judged()
    assert (found.verdict, found.tree()["driver"]) == (QueryVerdict.UNKNOWN, "unknown"), found.text()
    assert "its clock is 5 min ahead" in " ".join(one.what for one in found.missing)


def test_a_batch_of_the_future_is_not_known_to_run_as_usual(tmp_path: Path) -> None:
    query = Prepared(tmp_path)
    query.batches(10, 5, 0.5, 100, until_s=100).batch(10, -600, None, {"0-0": 1100}).started(900)
    query.status("Processing new data", for_s=300, active=True).looked({"0-0": (0, 9000)}, seconds=300)
    found = query.judged()
    assert (found.verdict, found.rule) == (QueryVerdict.UNKNOWN, "U0"), found.text()
    assert "10 min in the future" in found.sentence
    assert "clock" in found.missing[0].what


def test_that_all_is_read_needs_no_clock(tmp_path: Path) -> None:
    query = Prepared(tmp_path)
    query.batches(10, 5, 0.5, 100, until_s=-600).started(900).looked({"0-0": (0, 1000)})
    assert query.judged().verdict == QueryVerdict.IDLE


@pytest.mark.parametrize(("machine", "driver"), [("another", "alive"), (this_machine(), "gone"), (None, "gone")])
def test_a_process_of_another_machine_of_the_same_name(tmp_path: Path, machine: str | None, driver: str) -> None:
    query = Prepared(tmp_path)
    query.batches(10, 5, 0.5, 100, until_s=100)
    named = {} if machine is None else {"machine": machine}
    query.started(200, host=socket.gethostname(), pid=(1 << 22) + 7, **named)  # Linux has no such pid
    query.status(WAITS).looked({"0-0": (0, 9000)}, seconds=90)
    assert query.judged().tree()["driver"] == driver


def test_reports_are_those_of_the_source_with_the_name(tmp_path: Path) -> None:
    """Spark reports sources in the order of the plan; the folder has those with names in that of the alphabet."""
    query = Prepared(tmp_path)
    query.started(200)
    for number in range(10):
        orders = {"0-0": 100_000 * (number + 1)}
        bills = {"bills/broker-a:1": 100 * (number + 1)}
        query.batch(number, 5 * (10 - number), 0.5, orders_first=orders, bills=bills)
        query.progress(
            number,
            5 * (10 - number) - 0.4,
            QUICK,
            10,
            ({"0-0": 100_000 * number}, orders, {"0-0": 100_000 * (number + 2)}),
            ({"bills/broker-a:1": 100 * number}, bills, {"bills/broker-a:1": 100 * (number + 2)}),
        )
    found = query.judged("B")
    assert found.tree()["rates"]["unit"] == "messages"
    assert found.tree()["rates"]["arrival_per_s"] == pytest.approx(found.tree()["rates"]["service_per_s"], rel=0.1)
    assert [[one["topic"] for one in source["partitions"]] for source in found.tree()["sources"]] == [
        ["bills"],
        ["orders"],
    ]


@pytest.mark.parametrize(("unread", "verdict"), [(200, QueryVerdict.WORKING), (90_000, QueryVerdict.FALLING_BEHIND)])
def test_behind_brokers_whose_clock_is_ahead(tmp_path: Path, unread: int, verdict: QueryVerdict) -> None:
    """They do not tell how old the unread messages are: the rate says what a lag means."""
    query = Prepared(tmp_path)
    query.batches(60, 2, 1.9, 100).started(900).reports(60, 2, 100, 10, SLOW_SINK, unread=unread)
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 6000 + unread)}, seconds=None, before=(40, {"0-0": 3600 + unread}))
    assert query.judged().verdict == verdict, query.judged().text()
