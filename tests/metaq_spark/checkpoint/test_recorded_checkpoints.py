"""Checkpoints that real Spark 4.2 and 4.3 have written (``tests/support/record_checkpoints.py`` describes them)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import files

from metaq.cli.checkpoint import read_query
from metaq_spark.checkpoint.folder import read_batch, read_checkpoint
from metaq_spark.checkpoint.gaps import leads_back
from metaq_spark.checkpoint.sources import read_sources

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=sorted(folder.name for folder in GOLDEN.iterdir()))
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of one version, to be changed."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


def shown(command: Command, folder: Path) -> Any:
    status, out, err = command("checkpoint", "show", folder, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def labels(tree: Any) -> list[tuple[object, ...]]:
    """Each source with the topics that it reads, or its offset."""
    return [
        (source.get("name", source["number"]), *sorted({row["topic"] for row in source.get("partitions", ())}))
        for source in tree["sources"]
    ]


@pytest.mark.parametrize(
    ("query", "sources"),
    [
        ("by-order", [(1, "orders"), (2,)]),
        ("numbered", [(1, "orders"), (2,)]),
        ("named", [("bills", "bills"), ("files",), ("orders", "orders")]),
        ("mixed", [("clicks",), ("files",), ("orders", "orders"), ("returns", "returns")]),
        ("planned", [("bills", "bills"), ("files",), ("orders", "orders")]),
        ("sinks", [(1, "orders")]),
        ("state", [(1, "orders")]),
    ],
)
def test_every_query_is_shown(recorded: Path, command: Command, query: str, sources: list[tuple[object, ...]]) -> None:
    tree = shown(command, recorded / query)
    assert labels(tree) == sources
    assert tree["stateful"] is (query == "state")
    assert tree.get("sink") == ("second" if query == "sinks" else None)
    assert tree["planned_batch"] == (1 if query == "planned" else None)
    lags = {source.label: source.topics for source in read_query(str(recorded / query))}
    done = [source for source in sources if len(source) > 1 and (query, source[0]) != ("planned", "bills")]
    assert lags == {label: tuple(topics) for label, *topics in done}


def test_two_systems_in_one_query(recorded: Path) -> None:
    clicks, files, orders, returns = read_sources(read_checkpoint(recorded / "mixed"))
    assert (clicks.line, clicks.format, files.line) == ('{"clicks":{"0":1}}', None, '{"logOffset":0}')
    assert (orders.format, returns.format) == ("metaq", "rocketmq")
    assert sum(returns.read_to.offsets.values()) == 1 if returns.read_to else False
    assert {source.label: source.system for source in read_query(str(recorded / "mixed"))} == {
        "orders": "metaq",
        "returns": "rocketmq",
    }


def test_a_source_that_was_added_in_a_batch_that_failed(recorded: Path) -> None:
    bills, _, orders = read_sources(read_checkpoint(recorded / "planned"))
    assert (bills.read_to and bills.read_to.offsets, bool(bills.planned and bills.planned.offsets)) == ({}, True)
    assert orders.read_to is not None
    assert orders.planned is not None
    assert orders.read_to.offsets != orders.planned.offsets


@pytest.mark.parametrize("query", ["by-order", "numbered", "named", "mixed", "planned", "sinks", "state"])
def test_what_spark_wrote_is_written_again_as_it_is(recorded: Path, query: str) -> None:
    """Form, JSON and lines; the order of the lines of form 2 has no meaning."""
    for file in (recorded / query / "offsets").glob("[0-9]*"):
        text = read_batch(recorded / query, int(file.name)).offsets.text()
        assert sorted(text.splitlines()) == sorted(file.read_text().splitlines())
        assert text.splitlines()[:2] == file.read_text().splitlines()[:2]


def test_rename_and_undo(recorded: Path, command: Command) -> None:
    before = files(recorded / "mixed")
    rename = ("checkpoint", "rename", recorded / "mixed", "--source", "returns", "--name", "sent_back", "--yes")
    assert command(*rename)[0] == 0
    assert shown(command, recorded / "mixed")["moved"]
    added = read_batch(recorded / "mixed", 1)
    assert set(added.lines) == {"clicks", "files", "orders", "sent_back"}
    assert added.metadata.keys() == read_batch(recorded / "mixed", 0).metadata.keys()
    command("checkpoint", "undo", recorded / "mixed", "--yes")
    assert files(recorded / "mixed") == before


def test_a_query_whose_sources_changed_is_not_known_to_lead_back(recorded: Path) -> None:
    """Batch 4 has the sources of batch 1 again, and not those of batch 0, 2 and 3."""
    folder = recorded / "named"
    lines = (folder / "offsets" / "4").read_text().splitlines()
    moved = [line.replace('"incarnations"', '"moved": true, "incarnations"') for line in lines]
    (folder / "offsets" / "5").write_text("\n".join(moved))
    assert [leads_back(str(folder), 5, (first, 4)) for first in (1, 2, 3, 4)] == [False, False, False, False]
    then = (folder / "offsets" / "1").read_text().replace('"incarnations"', '"moved": true, "incarnations"')
    (folder / "offsets" / "5").write_text(then)
    assert [leads_back(str(folder), 5, (first, 4)) for first in (1, 2, 3, 4)] == [False, True, False, False]
