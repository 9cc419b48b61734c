"""The sources of a query in its checkpoint; this connector's are recognised by the form of their offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from metaq.formats.checkpoint_files import NO_OFFSET, are_names, numbered
from metaq_spark.backend import format_of
from metaq_spark.checkpoint.folder import Checkpoint, MicroBatch
from metaq_spark.offsets import Progress, read_progress


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """``number`` counts from 1: in the order of the query's plan, or of the names if the query names its sources.

    ``name`` is the one of ``readStream.name``; ``key`` is the source's in ``MicroBatch.lines``. ``line`` is as the last
    committed batch has it, or as the planned one if the source was added since. ``read_to`` and ``planned`` are
    ``None`` for the sources of others; ``planned`` also if no batch is planned, or the source was removed.
    """

    number: int
    key: str
    name: str | None
    line: str
    read_to: Progress | None
    planned: Progress | None

    @property
    def format(self) -> str | None:
        """The format that it reads; ``None`` for another connector's source."""
        if self.read_to is None:
            return None
        return format_of(self.read_to if self.read_to.offsets or self.planned is None else self.planned)

    @property
    def label(self) -> int | str:
        """Its name, or its number if it has none."""
        return self.number if self.name is None else self.name


def read_sources(checkpoint: Checkpoint) -> list[CheckpointSource]:
    """The sources, with where the query is in each.

    Raises:
        CheckpointError: An offset was written by a newer version, or is damaged.
    """
    done: Mapping[str, str] = {} if checkpoint.committed is None else checkpoint.committed.lines
    planned: Mapping[str, str] = {} if checkpoint.planned is None else checkpoint.planned.lines
    keys = numbered({*done, *planned})
    named = are_names(keys)
    return [_source(number, key, key if named else None, done, planned) for number, key in enumerate(keys, 1)]


def _source(
    number: int, key: str, name: str | None, done: Mapping[str, str], planned: Mapping[str, str]
) -> CheckpointSource:
    after = read_line(planned[key]) if key in planned else None
    at = read_line(done[key]) if key in done else None
    if at is None and after is not None and done.get(key, NO_OFFSET) == NO_OFFSET:
        at = Progress({})  # its first batch is planned: nothing was read yet
    return CheckpointSource(number, key, name, done.get(key, planned.get(key, NO_OFFSET)), at, after)


def read_line(line: str) -> Progress | None:
    """Parse a line of ``offsets/N``; return ``None`` if it has another connector's form.

    Raises:
        CheckpointError: It has this connector's form, but was written by a newer version, or is damaged.
    """
    try:
        tree = json.loads(line)
    except json.JSONDecodeError:
        return None
    return read_progress(tree) if isinstance(tree, dict) and {"v", "topics"} <= tree.keys() else None


def is_move(batch: MicroBatch | None) -> bool:
    """Whether a batch only moves the query."""
    found = [] if batch is None else [read_line(line) for line in batch.lines.values()]
    return any(progress is not None and progress.moved for progress in found)
