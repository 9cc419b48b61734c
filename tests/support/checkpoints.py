"""Checkpoint folders as Spark writes them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONF = {"spark.sql.shuffle.partitions": "2"}


def offset(moved: bool = False, incarnations: dict[str, dict[str, str]] | None = None, **topics: dict[str, int]) -> str:
    tree: dict[str, Any] = {"v": 2, "topics": topics, "incarnations": incarnations or {}}
    return json.dumps(tree | ({"moved": True} if moved else {}))


def plan(folder: Path, batch_id: int, *lines: str, form: str = "v1", metadata: str | None = None) -> None:
    about = json.dumps({"batchWatermarkMs": 5, "batchTimestampMs": 1000 + batch_id, "conf": CONF})
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(batch_id)).write_text("\n".join([form, about if metadata is None else metadata, *lines]))
    (folder / "offsets" / f".{batch_id}.crc").write_bytes(b"crc\0")


def commit(folder: Path, batch_id: int) -> None:
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    (folder / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":9}')


def query(folder: Path, *batches: str) -> Path:
    """A query with one source whose batches are all committed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"query-id"}')
    for batch_id, line in enumerate(batches):
        plan(folder, batch_id, line)
        commit(folder, batch_id)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
