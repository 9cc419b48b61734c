"""The position of a Spark query: the offsets of the newest committed batch in its checkpoint, a local folder.

Source: ``metaq_spark.checkpoint.folder`` describes the folder; this module reads what a lag needs, without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from metaq.formats.checkpoint_files import PlannedOffsets, are_names, parse_offsets
from metaq.formats.checkpoint_offsets import Progress, parse_progress
from metaq.model import TopicPartition

BATCH_BYTES_MAX: Final = 64 << 20
"""Longest file of a batch that is read."""


@dataclass(frozen=True, slots=True)
class QuerySource:
    """A source of the query: ``label`` is its name, or its number from 1 if the query names no source.

    ``progress`` is empty before the first commit. ``topics`` and ``known`` are what it reads; before the first commit,
    according to the planned batch.
    """

    label: int | str
    progress: Progress
    topics: tuple[str, ...]
    known: Mapping[TopicPartition, int]

    @property
    def system(self) -> str:
        """The name of its connector: ``metaq`` or ``rocketmq``."""
        return "rocketmq" if any(isinstance(where.partition.broker, str) for where in self.known) else "metaq"


def read_query(place: str) -> list[QuerySource]:
    """Return the sources of a query that read MetaQ or RocketMQ; ``place`` is a path or a ``file:`` URI.

    Raises:
        ValueError: It is not a checkpoint, has another form, or has no source of this project.
        OSError: It cannot be read.
    """
    folder = _local(place)
    offsets, commits = _numbers(folder / "offsets"), _numbers(folder / "commits")
    if not offsets:
        raise ValueError(f"--checkpoint {place}: no batch is in its folder offsets; is it the checkpointLocation?")
    committed = max(commits & offsets, default=None)
    if committed is None and commits:
        raise ValueError(f"--checkpoint {place}: batch {max(commits)} is committed, and its offsets are not there")
    file = folder / "offsets" / str(max(offsets) if committed is None else committed)
    lines = _batch(file, place).lines
    named = are_names(lines)
    sources = []
    for number, (name, line) in enumerate(lines.items(), 1):
        label = name if named else number
        if (progress := _progress(line, place, label)) is not None:
            topics = tuple(sorted({where.topic for where in progress.offsets}))
            read = Progress({}) if committed is None else progress
            sources.append(QuerySource(label, read, topics, progress.offsets))
    if not sources:
        raise ValueError(f"--checkpoint {place}: none of its {len(lines)} sources reads MetaQ or RocketMQ")
    return sources


def _local(place: str) -> Path:
    scheme, host, path, *_ = urlsplit(place)
    if scheme == "file" and host in ("", "localhost"):
        return Path(unquote(path))
    if "://" in place:
        raise ValueError(f"--checkpoint {place}: {scheme} is another file system; copy the folder here")
    return Path(place)


def _numbers(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.glob("*") if file.name.isascii() and file.name.isdecimal()}


def _batch(file: Path, place: str) -> PlannedOffsets:
    with file.open("rb") as opened:
        data = opened.read(BATCH_BYTES_MAX + 1)
    name = f"--checkpoint {place}: offsets/{file.name}"
    if len(data) > BATCH_BYTES_MAX:
        raise ValueError(f"{name} has more than {BATCH_BYTES_MAX} bytes")
    try:
        return parse_offsets(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _progress(line: str, place: str, label: int | str) -> Progress | None:
    """Parse a source's offsets; ``None`` for other connectors' sources."""
    try:
        tree = json.loads(line)
    except ValueError:
        return None
    if not isinstance(tree, dict) or not {"v", "topics"} <= tree.keys():
        return None
    try:
        return parse_progress(tree)
    except ValueError as error:
        raise ValueError(f"--checkpoint {place}: source {label}: {error}") from None
