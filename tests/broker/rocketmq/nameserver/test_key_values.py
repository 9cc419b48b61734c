"""Key-value pairs: answered when they are on the disk, read back whole, refused when they do not fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.rocketmq.nameserver.key_values import Change, KeyValueLimits, KeyValues, read_table
from metaq_broker.testing import FaultyFiles
from waiting import in_loop

from metaq.errors import FieldError
from metaq.model import Buffer


class Disk(Files):
    """Counts replacements, and fails them while ``full``."""

    def __init__(self) -> None:
        self.full = False
        self.replaced = 0

    def write_atomic(self, path: Path, data: Buffer) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.replaced += 1
        super().write_atomic(path, data)


def applied(
    folder: Path, changes: Iterable[tuple[str, str, str | None]], disk: Files | None = None, **limits: int
) -> tuple[list[str | None], dict[str, dict[str, str]]]:
    """Make the changes at once; return their outcomes and what a name server reads that starts afterwards."""

    async def run() -> list[str | None]:
        pairs = KeyValues(disk or Files(), folder / "kv.json", KeyValueLimits(**limits))
        pairs.open()
        outcomes: list[str | None] = []
        for change in changes:
            pairs.change(Change(*change, outcomes.append))
        await pairs.close()
        return outcomes

    outcomes = asyncio.run(run())
    file = folder / "kv.json"
    return outcomes, read_table(file.read_bytes(), file) if file.exists() else {}


def test_changes_are_kept_in_order(tmp_path: Path) -> None:
    changes = [("n", "a", "1"), ("n", "b", "2"), ("n", "a", "3"), ("m", "x", ""), ("n", "b", None), ("z", "z", None)]
    assert applied(tmp_path, changes) == ([None] * 6, {"n": {"a": "3"}, "m": {"x": ""}})
    assert applied(tmp_path, [("n", "c", "4")])[1] == {"n": {"a": "3", "c": "4"}, "m": {"x": ""}}


def test_changes_that_come_together_share_a_replacement(tmp_path: Path) -> None:
    disk = Disk()
    outcomes, table = applied(tmp_path, [("n", str(n), "v") for n in range(500)], disk)
    assert outcomes == [None] * 500
    assert len(table["n"]) == 500
    assert disk.replaced <= 2


@in_loop
async def test_nothing_is_seen_or_kept_that_the_disk_refused(tmp_path: Path) -> None:
    disk = Disk()

    pairs = KeyValues(disk, tmp_path / "kv.json")
    pairs.open()
    outcomes: asyncio.Queue[str | None] = asyncio.Queue()
    for full, expected in ((False, None), (True, "key-value pairs cannot be kept: No space left on device")):
        disk.full = full
        pairs.change(Change("n", f"full={full}", "v", outcomes.put_nowait))
        assert await asyncio.wait_for(outcomes.get(), 20) == expected
    assert pairs.namespace("n") == {"full=False": "v"}
    disk.full = False
    pairs.change(Change("n", "again", "v", outcomes.put_nowait))
    assert await asyncio.wait_for(outcomes.get(), 20) is None
    await pairs.close()
    assert read_table((tmp_path / "kv.json").read_bytes(), tmp_path)["n"] == {"full=False": "v", "again": "v"}


@pytest.mark.parametrize("field", ["namespace", "key", "value"])
def test_what_is_too_long_is_refused(tmp_path: Path, field: str) -> None:
    change = {"namespace": "n", "key": "k", "value": "v"} | {field: "x" * 11}
    with pytest.raises(FieldError, match=f"'{field}' of PUT_KV_CONFIG is 'x+'; it must be at most 10 characters"):
        applied(tmp_path, [tuple(change.values())], name_characters_max=10, value_characters_max=10)


def test_the_file_has_a_limit(tmp_path: Path) -> None:
    outcomes, table = applied(tmp_path, [("n", "k", "x" * 300)], file_bytes_max=200)
    assert outcomes == ["key-value pairs would take 330 bytes; at most 200 are allowed"]
    assert table == {}


@in_loop
async def test_two_name_servers_do_not_share_a_file(tmp_path: Path) -> None:
    first, second = (KeyValues(Files(), tmp_path / "kv.json") for _ in range(2))
    first.open()
    with pytest.raises(ConfigError, match="is used by another name server that is running"):
        second.open()
    await first.close()
    second.open()
    await second.close()


@pytest.mark.parametrize(
    ("content", "table"),
    [
        ('{"configTable":{"n":{"k":"v"}}}', {"n": {"k": "v"}}),
        ('{\n\t"configTable":{\n\t\t"n":{"k":"v","gone":null}\n\t}\n}', {"n": {"k": "v"}}),  # Java's, printed nicely
        ('{"configTable":{}}', {}),
        ("{}", {}),
    ],
)
def test_files_of_java_are_read(tmp_path: Path, content: str, table: dict[str, dict[str, str]]) -> None:
    assert read_table(content.encode(), tmp_path) == table


@pytest.mark.parametrize(
    "content", ['{"configTable":', "[]", '{"configTable":[]}', '{"configTable":{"n":1}}', "\x00\x01"]
)
def test_a_damaged_file_is_an_error_and_stays(tmp_path: Path, content: str) -> None:
    file = tmp_path / "kv.json"
    file.write_text(content)
    pairs = KeyValues(Files(), file)
    with pytest.raises(ConfigError, match=r"kvConfigPath: .*a \.bak file beside it"):
        pairs.open()
    asyncio.run(pairs.close())
    assert file.read_text() == content


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_bytes(b"")
    assert applied(tmp_path, [("n", "k", "v")])[1] == {"n": {"k": "v"}}


def test_the_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert applied(folder, [("n", "k", "v")])[1] == {"n": {"k": "v"}}
    assert json.loads((folder / "kv.json").read_text()) == {"configTable": {"n": {"k": "v"}}}


@pytest.mark.parametrize("seed", range(8))
def test_pairs_in_a_new_folder_outlive_a_power_cut(tmp_path: Path, seed: int) -> None:
    disk, folder = FaultyFiles(tmp_path), tmp_path / "a" / "b"
    assert applied(folder, [("n", "k", "v")], disk)[0] == [None]
    disk.crash(Random(seed))
    assert applied(folder, [])[1] == {"n": {"k": "v"}}
