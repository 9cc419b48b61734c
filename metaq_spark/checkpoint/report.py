"""The output of the command, as JSON and as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from metaq.model import TopicPartition
from metaq_spark.checkpoint.folder import Checkpoint
from metaq_spark.checkpoint.move import Move, MoveStep
from metaq_spark.checkpoint.sources import CheckpointSource, is_move
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.offsets import unit_of

UNKNOWN: Final = "-"
_Row = Sequence[object]


def checkpoint_tree(
    checkpoint: Checkpoint, sources: Sequence[tuple[CheckpointSource, Sequence[PartitionLag] | None]]
) -> Any:
    """Return the state of a checkpoint; each source with the lag of its partitions, ``None`` if no broker was asked."""
    committed, planned = checkpoint.committed, checkpoint.planned
    return {
        "checkpoint": str(checkpoint.folder),
        "query_id": checkpoint.query_id,
        "committed_batch": None if committed is None else committed.batch_id,
        "planned_batch": None if planned is None else planned.batch_id,
        "moved": is_move(planned),
        "stateful": checkpoint.stateful,
        **({} if checkpoint.sink is None else {"sink": checkpoint.sink}),
        "seconds_since_change": round(checkpoint.quiet_s, 1),
        "sources": [_source_tree(source, lags) for source, lags in sources],
    }


def checkpoint_text(tree: Any) -> str:
    """The same for people."""
    planned = tree["planned_batch"]
    if planned is None:
        state = f"last batch {tree['committed_batch']}, committed"
    elif tree["moved"]:
        state = f"last batch {tree['committed_batch']}, committed; moved by batch {planned}, which has not run yet"
    else:
        state = f"last committed batch {_shown(tree['committed_batch'])}; batch {planned} is planned, not committed"
    lines = [
        f"checkpoint {tree['checkpoint']}",
        f"query {_shown(tree['query_id'])}{', stateful' if tree['stateful'] else ''}; {state}",
        *([f"sink {tree['sink']}"] if "sink" in tree else []),
        f"last change {tree['seconds_since_change']:.0f} s ago",
    ]
    for source in tree["sources"]:
        lines += [
            "",
            *_source_text(source, asked=any(row["start"] is not None for row in source.get("partitions", ()))),
        ]
    return "\n".join(lines)


def move_tree(checkpoint: Checkpoint, move: Move, *, done: bool) -> Any:
    """Return the changes of a move; ``done``: whether it was executed."""
    return {
        "checkpoint": str(checkpoint.folder),
        "done": done,
        "batch": move.batch.batch_id,
        "abandoned_batch": None if checkpoint.planned is None else checkpoint.planned.batch_id,
        "stateful": checkpoint.stateful,
        "seconds_since_change": round(checkpoint.quiet_s, 1),
        "partitions": [_step_tree(step) for step in move.steps],
    }


def move_text(tree: Any) -> str:
    """Return the changes of a move as text, with advice."""
    unit = "messages" if any("skipped_messages" in row for row in tree["partitions"]) else "bytes"
    heads = ("source", "partition", "from", "to", f"{unit} read again", f"{unit} skipped")
    rows = [
        (
            row["source"],
            _partition_name(row),
            _shown(row["from"]),
            "dropped" if row["to"] is None else row["to"],
            row[f"read_again_{unit}"],
            row[f"skipped_{unit}"],
        )
        for row in tree["partitions"]
    ]
    batch = tree["batch"]
    lines = [f"checkpoint {tree['checkpoint']}", *_table(heads, rows), ""]
    if tree["abandoned_batch"] is not None:
        lines.append(
            f"Batch {tree['abandoned_batch']} was planned and is given up. What of it was written stays written;\n"
            "what is not moved is read from before it, again. Not for a file sink: its log must have every batch."
        )
    if any(row["to"] is None for row in tree["partitions"]):
        lines.append(
            "The query forgets what is dropped. If its options ever select that again, it is read from its first\n"
            "message, so change the options first."
        )
    if tree["stateful"]:
        lines.append("The state of the query stays as it is.")
    if tree["done"]:
        lines.append(
            f"Done: offsets/{batch} was added. When the query starts, batch {batch} reads nothing and notes the"
        )
        lines.append(f"new positions; batch {batch + 1} continues from there. Until then, undo reverts the move.")
    else:
        lines.append(
            "Nothing was changed. The query must be stopped, which this command cannot check: its checkpoint was"
        )
        lines.append(f"last changed {tree['seconds_since_change']:.0f} s ago. To do it, give --yes.")
    return "\n".join(lines)


def _source_tree(source: CheckpointSource, lags: Sequence[PartitionLag] | None) -> dict[str, Any]:
    identity = {"number": source.number} | ({} if source.name is None else {"name": source.name})
    if source.read_to is None:
        return {**identity, "metaq": False, "offset": source.line}
    planned = {} if source.planned is None else source.planned.offsets
    known: list[tuple[TopicPartition, int | None, PartitionLag | None]]
    if lags is None:
        places = sorted({*source.read_to.offsets, *planned})
        known = [(where, source.read_to.offsets.get(where), None) for where in places]
    else:
        known = [(lag.where, source.read_to.offsets.get(lag.where), lag) for lag in lags]
    partitions = [
        {
            "topic": where.topic,
            "partition": str(where.partition),
            "read_to": at,
            "planned_to": planned.get(where),
            "start": None if lag is None or lag.available is None else lag.available.start,
            "end": None if lag is None or lag.available is None else lag.available.end,
            "lag_bytes": None if lag is None else lag.bytes,
            "lag_messages": None if lag is None else lag.messages,
            "lag_seconds": None if lag is None or lag.seconds is None else round(lag.seconds, 3),
            "remark": None if lag is None else lag.status_note,
        }
        for where, at, lag in known
    ]
    kind: dict[str, Any] = {"metaq": True} if source.format == "metaq" else {"metaq": False, "format": source.format}
    return {**identity, **kind, "partitions": partitions}


def _source_text(source: Any, *, asked: bool) -> list[str]:
    label = source.get("name", source["number"])
    if "partitions" not in source:
        return [f"source {label} does not read MetaQ: {source['offset'][:100]}"]
    heads = ["partition", "read to", "planned to"]
    keys = ["read_to", "planned_to"]
    if asked:
        heads += ["broker has", "lag bytes", "messages", "seconds", "remark"]
        keys += ["held", "lag_bytes", "lag_messages", "lag_seconds", "remark"]
    rows = [
        (_partition_name(row), *(_shown((row | {"held": _available(row)})[key]) for key in keys))
        for row in source["partitions"]
    ]
    return [f"source {label}", *_table(heads, rows)]


def _step_tree(step: MoveStep) -> dict[str, Any]:
    unit = unit_of(step.where)
    return {
        "source": step.source,
        "topic": step.where.topic,
        "partition": str(step.where.partition),
        "from": step.start,
        "to": step.end,
        f"read_again_{unit}": step.back,
        f"skipped_{unit}": step.skipped,
    }


def _partition_name(row: Any) -> str:
    return f"{row['topic']}/{row['partition']}"


def _available(row: Any) -> str | None:
    return None if row["start"] is None else f"[{row['start']}, {row['end']})"


def _shown(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _table(heads: Sequence[str], rows: Iterable[_Row]) -> list[str]:
    cells = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
