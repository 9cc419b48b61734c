"""What a process of Spark's imports for the connector, before it knows whether it will need it.

Spark starts half a dozen Python processes for a query, each of which imports the package again: the time of a first
row. Each case is a process of its own, and what Spark's own worker has imported before does not count.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sources import ROOT

pytestmark = pytest.mark.process

HEAVY = {"numba", "llvmlite", "kazoo", "ssl", "asyncio", "pandas", "pyarrow.compute", "importlib.metadata"}
"""Imported by what needs them, when it does: compiled loops, ZooKeeper, TLS, calculations on whole columns."""

WORKERS = "pyspark.sql.worker."
SOURCE, SINK = "metaq_spark.source.stream_reader", "metaq_spark.sink.writers"
BATCH_SOURCE, BATCH_SINK = "metaq_spark.backends.metaq.source", "metaq_spark.backends.metaq.sink"

PROGRAM = """
import importlib, json, sys
before, ours = json.loads(sys.argv[1])
for name in before:
    importlib.import_module(name)
known = set(sys.modules)
for name in ours:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - known)))
"""


def imported(before: list[str], ours: list[str]) -> set[str]:
    """What ``ours`` imports in a process that has imported ``before``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([before, ours])],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("worker", ["lookup_data_sources", "create_data_source", "write_into_data_source"])
def test_finding_the_format_imports_one_module_of_ours(worker: str) -> None:
    new = imported([WORKERS + worker], ["pyspark_metaq"])
    assert new == {"pyspark_metaq", "metaq_spark", "metaq_spark.datasource"}


@pytest.mark.parametrize(
    ("process", "ours"),
    [
        ("pyspark.sql.streaming.python_streaming_source_runner", [SOURCE]),
        (WORKERS + "write_into_data_source", [BATCH_SINK, SINK]),
        (WORKERS + "commit_data_source_write", [BATCH_SINK]),
        (WORKERS + "python_streaming_sink_runner", [SINK]),
        ("pyspark.worker", [SOURCE, "metaq_spark.backends.metaq.range_task", SINK]),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(process: str, ours: list[str]) -> None:
    assert imported([process], ["pyspark_metaq", *ours]) & HEAVY == set()


def test_the_process_that_plans_does_not_load_what_only_tasks_need() -> None:
    new = imported([WORKERS + "plan_data_source_read"], ["pyspark_metaq", SOURCE, BATCH_SOURCE])
    of_tasks = {
        "metaq_spark.backends.metaq.range_task",
        "metaq_spark.columns.decode",
        "metaq_spark.columns.json_values",
    }
    assert new & (of_tasks | HEAVY) == set()


def test_the_package_itself_is_one_module() -> None:
    assert {name for name in imported([], ["metaq_spark"]) if name.startswith("metaq")} == {"metaq_spark"}


def test_the_help_of_metaq_imports_nothing_of_its_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "metaq.cli.main", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    new = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "metaq.cli.commands" in new
    ours = {name for name in new if name.startswith("metaq") and not f"{name}.".startswith("metaq.cli.")}
    assert ours == {"metaq", "metaq.client", "metaq.client.profile", "metaq.ports", "metaq.terminals"}
    assert new & (HEAVY | {"socket", "sqlite3", "logging", "subprocess", "typing_extensions"}) == set()


def test_a_heavy_import_would_be_seen() -> None:
    assert imported(["pyspark.worker"], [SOURCE, "metaq_spark.columns.kernels"]) & HEAVY >= {"numba", "llvmlite"}
