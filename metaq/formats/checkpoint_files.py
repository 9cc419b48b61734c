"""The files of a batch in the checkpoint of a Spark query, as text: what was planned, and that it is done. Pure.

``offsets/N`` has the form in its first line, JSON about the batch in its second, and a line for each source::

    v1                                  v2
    {"batchWatermarkMs":0,...}          {"batchWatermarkMs":0,...}
    {"v":4,"topics":...}                orders:{"v":4,"topics":...}
    -                                   files:-

A line says where the batch ends in a source; ``-`` = nothing known yet. Form 1 has the sources in the order of the
query's plan. Form 2 has them in any order, each with its name (``readStream.name``), or with its number from 0 if the
query names no source. The sources of two batches of form 2 may differ: a source can be added, removed or renamed while
the query is stopped.

``commits/N`` has the form and JSON: form 2 adds the files of the state, form 3 the sinks that the query has had.

Source: Spark 4.0 to 4.3 as observed (``tests/golden/checkpoints``), and its classes OffsetSeqLog and CommitLog.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

NO_OFFSET: Final = "-"
"""The line of a source of which nothing is known yet."""

BY_ORDER: Final = "v1"
BY_NAME: Final = "v2"
OFFSETS_FORMS: Final = (BY_ORDER, BY_NAME)
COMMIT_FORMS: Final = ("v1", "v2", "v3")


@dataclass(frozen=True, slots=True)
class PlannedOffsets:
    """``offsets/N``: its ``form``, Spark's ``metadata`` about the batch, and the line of each source.

    ``lines`` has the sources in the order of their numbers. Its keys are names, or the numbers from 0 as text.
    """

    form: str
    metadata: Mapping[str, Any]
    lines: Mapping[str, str]

    def text(self) -> str:
        """The content of the file."""
        named = self.form == BY_NAME
        lines = (f"{name}:{line}" if named else line for name, line in self.lines.items())
        return "\n".join([self.form, json.dumps(self.metadata, separators=(",", ":")), *lines])


@dataclass(frozen=True, slots=True)
class DoneBatch:
    """``commits/N``: the watermark of the next batch, in ms since 1970, and the name of the sink, if it has one."""

    watermark_ms: int
    sink: str | None


def parse_offsets(text: str) -> PlannedOffsets:
    """Parse ``offsets/N``.

    Raises:
        ValueError: It has an unknown form, or is damaged. The sentence goes on after the name of the file.
    """
    form, metadata, *lines = _parts(text, OFFSETS_FORMS)
    about = _json(metadata)
    if form == BY_ORDER:
        return PlannedOffsets(form, about, {str(place): line for place, line in enumerate(lines)})
    named = dict(_named(line) for line in lines)
    return PlannedOffsets(form, about, {name: named[name] for name in numbered(named)})


def parse_commit(text: str) -> DoneBatch:
    """Parse ``commits/N``. Raises as ``parse_offsets``."""
    _, metadata, *_ = _parts(text, COMMIT_FORMS)
    tree = _json(metadata)
    watermark_ms = tree.get("nextBatchWatermarkMs", 0)
    sinks = tree.get("sinkMetadataMap", {})
    if type(watermark_ms) is not int or not isinstance(sinks, dict):
        raise ValueError(f"holds {metadata[:60]!r}, which is not what Spark writes")
    active = [name for name, sink in sinks.items() if isinstance(sink, dict) and sink.get("isActive") is True]
    return DoneBatch(watermark_ms, active[0] if active else None)


def numbered(names: Collection[str]) -> list[str]:
    """Return the names of sources in the order of the query's plan, which numbers them, or sorted if they are named."""
    return sorted(names) if are_names(names) else sorted(names, key=int)


def are_names(names: Collection[str]) -> bool:
    """Whether the query names its sources: these are not Spark's numbers of all of them, from 0."""
    return set(names) != {str(place) for place in range(len(names))}


def _parts(text: str, known: tuple[str, ...]) -> list[str]:
    form, *rest = text.rstrip("\n").split("\n")
    if form not in known:
        raise ValueError(
            f"is in Spark's form {form[:20]!r}, known is {' and '.join(known)}; leave the checkpoint to Spark"
        )
    if not rest:
        raise ValueError("is cut off")
    return [form, *rest]


def _named(line: str) -> tuple[str, str]:
    name, separator, offset = line.partition(":")
    if not separator:
        raise ValueError(f"holds {line[:60]!r} where the name of a source and its offset should be")
    return name, offset


def _json(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except json.JSONDecodeError:
        tree = None
    if not isinstance(tree, dict):
        raise ValueError(f"holds {text[:60]!r} where JSON about the batch should be")
    return tree
