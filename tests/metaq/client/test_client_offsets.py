"""One contract for all storages of offsets, and what each does with a place that cannot be used."""

from __future__ import annotations

import json
import sqlite3
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from storage_contract import P0, P1, check_by_group_and_partition, check_incarnations, check_save_if_unchanged

from metaq.client.offsets import GroupOffset, OffsetStorage, file, memory
from metaq.client.sql_offsets import TABLE, DbApiOffsets, dbapi, sqlite
from metaq.errors import StoreFailed


def _dbapi(folder: Path) -> DbApiOffsets:
    storage = dbapi(lambda: sqlite3.connect(folder / "any.sqlite"))
    storage.create_table()
    storage.create_table()
    return storage


STORAGES: dict[str, Callable[[Path], OffsetStorage]] = {
    "memory": lambda folder: memory(),
    "file": lambda folder: file(folder / "new" / "offsets.json"),
    "sqlite": lambda folder: sqlite(folder / "new" / "offsets.sqlite"),
    "dbapi": _dbapi,
}


@pytest.fixture(params=sorted(STORAGES))
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> OffsetStorage:
    return STORAGES[request.param](tmp_path)


def test_what_was_saved_is_loaded_by_group_and_partition(storage: OffsetStorage) -> None:
    """Databases have the same test in tests/databases."""
    check_by_group_and_partition(storage, lasting=not isinstance(storage, type(memory())))


def test_what_somebody_else_has_saved_is_not_replaced(storage: OffsetStorage) -> None:
    """Databases have the same test in tests/databases."""
    check_save_if_unchanged(storage)


@pytest.mark.parametrize("name", ["memory", "file", "sqlite"])
def test_incarnations_are_kept_beside_the_offsets(name: str, tmp_path: Path) -> None:
    check_incarnations(STORAGES[name](tmp_path))


def test_the_file_has_the_form_of_the_java_client(tmp_path: Path) -> None:
    file(tmp_path / "offsets").save("g", {P1: GroupOffset(12, 34)})
    ((row,),) = json.loads((tmp_path / "offsets").read_text()).values()
    assert row.pop("modified") > 1_600_000_000_000
    assert row == {"topic": "orders", "partition": {"brokerId": 0, "partition": 1}, "offset": 12, "messageId": 34}


@pytest.mark.parametrize("text", ["", "[]", '{"g": 5}', '{"g": [{"topic": "t"}]}'])
def test_a_file_of_something_else_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(text)
    with pytest.raises(StoreFailed, match=str(path)) as failed:
        file(path).load("g", [P0])
    assert failed.value.retryable


def test_two_users_of_one_file_keep_each_others_offsets(tmp_path: Path) -> None:
    one, two = file(tmp_path / "offsets"), file(tmp_path / "offsets")
    one.save("g", {P0: GroupOffset(1)})
    two.save("g", {P1: GroupOffset(2)})
    assert one.load("g", [P0, P1]) == {P0: GroupOffset(1), P1: GroupOffset(2)}


def test_the_table_is_that_of_the_java_client(tmp_path: Path) -> None:
    sqlite(tmp_path / "s").save("g", {P1: GroupOffset(12, 34)})
    database = sqlite3.connect(tmp_path / "s")
    assert TABLE == "meta_topic_partition_group_offset"
    rows = database.execute(f'SELECT topic, "partition", group_id, "offset", msg_id FROM {TABLE}').fetchall()
    database.close()
    assert rows == [("orders", "0-1", "g", 12, 34)]


@pytest.mark.parametrize("make", [file, sqlite])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, make: Callable[[Path], OffsetStorage]) -> None:
    (tmp_path / "in the way").write_text("")
    with pytest.raises(StoreFailed, match="in the way"):
        make(tmp_path / "in the way" / "offsets").save("g", {P0: GroupOffset(1)})


class Recorder:
    """A connection of an imaginary driver: notes statements, counts no rows that stay as they are."""

    def __init__(self) -> None:
        self.said: list[tuple[str, tuple[object, ...]]] = []
        self.row: tuple[int, int] | None = None
        self.fails = False
        self.rowcount = 0
        self.closed = 0

    def cursor(self) -> Recorder:
        return self

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> None:
        if self.fails:
            raise ConnectionResetError("server has gone away")
        self.said.append((statement, values))

    def fetchone(self) -> tuple[int, int] | None:
        return self.row

    def commit(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("style", "quote", "condition"),
    [
        ("pyformat", "`", "WHERE `topic` = %s AND `partition` = %s AND `group_id` = %s"),
        ("numeric", '"', 'WHERE "topic" = :1 AND "partition" = :2 AND "group_id" = :3'),
        ("qmark", '"', 'WHERE "topic" = ? AND "partition" = ? AND "group_id" = ?'),
    ],
)
def test_statements_are_written_for_the_driver(style: str, quote: str, condition: str) -> None:
    recorder = Recorder()
    dbapi(lambda: recorder, "app.offsets", paramstyle=style, quote=quote).load("g", [P0])
    *before, (statement, values) = recorder.said
    assert ["sql_mode" in each for each, _ in before] == ([True] if quote == "`" else [])
    assert statement.endswith(f"FROM app.offsets {condition}")
    assert values == ("orders", "0-0", "g")


def test_a_row_that_stays_as_it_is_is_not_inserted_again() -> None:
    recorder = Recorder()
    recorder.row = (5, 6)
    dbapi(lambda: recorder).save("g", {P0: GroupOffset(5, 6)})
    assert [statement.split()[0] for statement, _ in recorder.said] == ["UPDATE", "SELECT"]


@pytest.mark.parametrize("first", ["load", "save"])
def test_the_style_of_a_driver_is_known_from_the_first_call_on(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """Some drivers have it in a package of their own, some in one below another."""
    outer, inner, own = (types.ModuleType(name) for name in ("imaginary", "imaginary.db", "imaginary.db.pure"))
    inner.paramstyle = "pyformat"  # type: ignore[attr-defined]
    for module in (outer, inner, own):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    connection = type("Connection", (Recorder,), {"__module__": own.__name__})()
    getattr(dbapi(lambda: connection), first)("g", {P0: GroupOffset(5, 6)})
    assert all("= %s AND" in statement or "(%s, %s" in statement for statement, _ in connection.said)


def test_after_an_error_of_the_driver_the_next_call_connects_again() -> None:
    made: list[Recorder] = []

    def connect() -> Any:
        made.append(Recorder())
        return made[-1]

    storage = dbapi(connect)
    storage.load("g", [P0])
    made[0].fails = True
    with pytest.raises(StoreFailed, match=f"table {TABLE} cannot be used: ConnectionResetError: server has gone away"):
        storage.load("g", [P0])
    storage.load("g", [P0])
    assert len(made) == 2


def test_wrong_names_and_styles_are_refused() -> None:
    with pytest.raises(ValueError, match="table 'a; DROP'"):
        dbapi(sqlite3.connect, "a; DROP")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="paramstyle 'odd': expected one of qmark"):
        dbapi(sqlite3.connect, paramstyle="odd")  # type: ignore[arg-type]
