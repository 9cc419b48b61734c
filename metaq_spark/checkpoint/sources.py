"""The sources of a query in its checkpoint; this connector's are recognised by the form of their offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass

from metaq_spark.backend import format_of
from metaq_spark.checkpoint.folder import Checkpoint, MicroBatch
from metaq_spark.offsets import Progress, read_progress


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """``number`` counts from 1, in the order of the query's plan. ``line`` is as the last committed batch has it.

    ``read_to`` and ``planned`` are ``None`` for the sources of others; ``planned`` also if no batch is planned.
    """

    number: int
    line: str
    read_to: Progress | None
    planned: Progress | None

    @property
    def format(self) -> str | None:
        """The format that it reads; ``None`` for another connector's source."""
        if self.read_to is None:
            return None
        return format_of(self.read_to if self.read_to.offsets or self.planned is None else self.planned)


def read_sources(checkpoint: Checkpoint) -> list[CheckpointSource]:
    """The sources, with where the query is in each.

    Raises:
        CheckpointError: An offset was written by a newer version, or is damaged.
    """
    base = checkpoint.committed or checkpoint.planned
    assert base is not None  # a checkpoint has a batch
    planned = checkpoint.planned.lines if checkpoint.planned is not None else ()
    sources = []
    for place, line in enumerate(base.lines):
        after = read_line(planned[place]) if place < len(planned) else None
        at = read_line(line)
        if checkpoint.committed is None and at is not None:
            at = Progress({})  # the first batch is planned: nothing was read yet
        sources.append(CheckpointSource(place + 1, line, at, after))
    return sources


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
    found = [] if batch is None else [read_line(line) for line in batch.lines]
    return any(progress is not None and progress.moved for progress in found)
