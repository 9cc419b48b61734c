"""Rules that add to a verdict, or need evidence of their own, each made true once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diagnosed import Prepared

from metaq_spark.diagnosis.evidence import UiEvidence

PHASES = {"addBatch": 900, "walCommit": 20, "commitOffsets": 20, "latestOffset": 2}


def rules(query: Prepared) -> list[str]:
    return [one.rule for one in query.judged().findings]


def test_the_first_batch_holds_everything(tmp_path: Path) -> None:
    query = Prepared(tmp_path).batch(0, 300, None, {"0-0": 5000}).started(310)
    query.status("Processing new data", for_s=300, active=True).looked({"0-0": (0, 5000)}, seconds=300)
    assert "B9" in rules(query)


def test_more_tasks_than_rows_need_and_a_state_whose_partitions_are_fixed(tmp_path: Path) -> None:
    states = [{"operatorName": "dedupe", "numShufflePartitions": 200, "memoryUsedBytes": 900, "numRowsTotal": 5}]
    query = Prepared(tmp_path).batches(20, 2, 1.9, 100).started(900).reports(20, 2, 100, 10, PHASES, states=states)
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))
    for partition in range(4):
        (tmp_path / "state" / "0" / str(partition)).mkdir(parents=True)
    conf = {"spark.sql.shuffle.partitions": "200"}
    query.ui = UiEvidence(query.now_ms, 0, 0, 0, 2, 1, conf=conf, memory_bytes=1000)
    assert {"C6", "E2", "E5"} <= set(rules(query))


def test_a_fixed_cost(tmp_path: Path) -> None:
    def rows(number: int) -> Any:
        return 10 * (1 + number % 3)

    query = Prepared(tmp_path).batches(20, 2, 1.9, 100).started(900).reports(20, 2, 100, 10, PHASES, made_rows=rows)
    query.status("Processing new data", for_s=1, active=True)
    query.looked({"0-0": (0, 100_000)}, seconds=900, before=(40, {"0-0": 40_000}))
    assert "C7" in rules(query)


def test_a_folder_that_was_copied_while_the_query_ran_and_is_of_other_topics(tmp_path: Path) -> None:
    query = Prepared(tmp_path).batches(5, 5, 0.5, 100, until_s=100)
    query.batch(5, 90, None, {"0-0": 600}).batch(6, 85, None, {"0-0": 700})
    query.options["subscribe"] = "bills"
    assert {"F2", "F3"} <= set(rules(query))


def test_reports_of_another_query(tmp_path: Path) -> None:
    query = Prepared(tmp_path).batches(5, 5, 0.5, 100, until_s=100).started(10)
    query.events[0]["id"] = "another"
    assert "F5" in rules(query)


def test_a_route_to_a_broker_that_is_away(tmp_path: Path) -> None:
    query = Prepared(tmp_path).batches(5, 5, 0.5, 100, until_s=100).looked({"0-0": (0, 500)})
    query.faults(("route of orders", "has queues at broker-b, which does not answer"))
    assert "G6" in rules(query)


@pytest.mark.parametrize(("pid", "is_found"), [(7, False), (8, True)])
def test_runs_that_report_in_turn_are_of_two_processes(
    tmp_path: Path, pid: int, is_found: bool
) -> None:
    query = Prepared(tmp_path).batches(5, 5, 0.5, 100).started(20, "run-0").started(10, "run-1", pid=pid)
    query.event("idle", 9, "run-0").event("idle", 8, "run-1")
    assert ("F1" in rules(query)) == is_found
