"""Moves a query: adds an empty batch to its checkpoint that ends where the query will continue.

Why a batch: Spark's own files do not change, so there is nothing to restore; adding one file is atomic; the query
itself runs the batch, so that its state and the logs of file sinks have no gap. Why a new id: a sink may have decided a
batch that is not yet in Spark's checkpoint, and would drop or refuse other content under its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metaq.formats.checkpoint_files import numbered
from metaq.model import PartitionState, TopicPartition
from metaq_spark.checkpoint.folder import Checkpoint, CheckpointFolderError, MicroBatch
from metaq_spark.checkpoint.sources import CheckpointSource, is_move, read_line, read_sources
from metaq_spark.errors import OptionError
from metaq_spark.offsets import Progress, incarnations_of, to_json
from metaq_spark.options.positions import Position, Specific
from metaq_spark.options.selection import Named
from metaq_spark.source.backend import Cluster
from metaq_spark.source.resolution import Bound

OPTION = "--to"
_NAME: Final = re.compile(r"[a-zA-Z0-9_]+", re.ASCII)
CONTROL_BATCH: Final = "controlBatchInfo"
"""What Spark says about a batch that moves no data, which is not true of the next one."""


@dataclass(frozen=True, slots=True)
class AfterBatch:
    """Where a batch of the past ended."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What to move: everything, unless a source (by its name, or its number if it has none), a topic or some partitions
    are named.

    Always of one format; ``system`` is its name in messages.
    """

    source: str | None = None
    topic: str | None = None
    partitions: frozenset[TopicPartition] | None = None
    format: str = "metaq"
    system: str = "MetaQ"

    def takes_source(self, source: CheckpointSource) -> bool:
        """Return whether a source is selected."""
        return self.source in (None, str(source.label))

    def takes(self, where: TopicPartition) -> bool:
        """Return whether a partition is selected."""
        return (self.topic in (None, where.topic)) and (self.partitions is None or where in self.partitions)


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One partition's move, from and to an offset. ``back`` and ``skipped`` count offsets; one of them is 0.

    ``start`` is ``None`` for a partition that the query did not know, or knew in another incarnation; ``end`` for one
    that is dropped.
    """

    source: int | str
    where: TopicPartition
    start: int | None
    end: int | None

    @property
    def back(self) -> int:
        """How much is read again."""
        return 0 if self.start is None or self.end is None else max(0, self.start - self.end)

    @property
    def skipped(self) -> int:
        """How much is not read."""
        return 0 if self.start is None or self.end is None else max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Move:
    """The batch to add, and what it changes."""

    batch: MicroBatch
    steps: tuple[MoveStep, ...]


def check_movable(checkpoint: Checkpoint, *, keep_state: bool, abandon_planned: bool) -> None:
    """Refuse a move that would silently corrupt the query.

    Raises:
        CheckpointFolderError: A batch is planned, the first is not committed, or the query is stateful.
    """
    if checkpoint.committed is None:
        raise CheckpointFolderError(checkpoint.folder, "no batch is committed yet; delete it to start elsewhere")
    if is_move(checkpoint.planned):
        raise CheckpointFolderError(
            checkpoint.folder, "the query is moved already and has not run since; undo that first"
        )
    if checkpoint.planned is not None and (checkpoint.stateful or not abandon_planned):
        advice = "start the query once, so that it finishes it"
        other = (
            "" if checkpoint.stateful else ", or give --abandon-planned: it may have been written, in full or in part"
        )
        raise CheckpointFolderError(
            checkpoint.folder, f"batch {checkpoint.planned.batch_id} is planned and not committed; {advice}{other}"
        )
    if checkpoint.stateful and not keep_state:
        raise CheckpointFolderError(
            checkpoint.folder,
            "the query is stateful: its state stays as it is, so messages that are read again count again, and those "
            "that are skipped are missing in it; give --keep-state if that is wanted",
        )


def plan_move(
    checkpoint: Checkpoint, cluster: Cluster, position: Position | AfterBatch, choice: Choice, now_ms: int
) -> Move:
    """Determine the new positions of the selected partitions, and the new batch. ``cluster``: of the format of
    ``choice``.

    Raises:
        CheckpointFolderError: Nothing is selected, or the earlier batch is not stored.
        OptionError: No message starts at a position, it is deleted, or it cannot be found.
        ConnectionFailed, DeadlineExceeded, TopicNotFound: The brokers could not be asked.
    """
    base = checkpoint.committed
    assert base is not None  # it was checked
    lines, steps = dict(base.lines), []
    chosen = _chosen_sources(checkpoint, choice)
    if isinstance(position, Specific):
        _require_read(position, chosen, choice)
    for source in chosen:
        assert source.read_to is not None
        available = _available(cluster, source.read_to, position, choice)
        wanted = position
        if isinstance(wanted, AfterBatch):
            wanted = _past(checkpoint, source, wanted, available)
        elif isinstance(wanted, Specific):
            wanted = Specific({where: wanted.offsets[where] for where in available})
        found = _resolve(cluster, wanted, available)
        steps += [
            MoveStep(source.label, where, _known(source.read_to, where, available), at) for where, at in found.items()
        ]
        lines[source.key] = _line(source.read_to, found, available)
    return _added(checkpoint, lines, steps, now_ms)


def plan_drop(checkpoint: Checkpoint, choice: Choice, now_ms: int) -> Move:
    """Determine which partitions to drop, and the new batch; no broker is asked.

    Raises:
        CheckpointFolderError: Nothing is selected, or everything that a source reads.
    """
    base = checkpoint.committed
    assert base is not None  # it was checked
    lines, steps = dict(base.lines), []
    for source in read_sources(checkpoint):
        if source.read_to is None or source.key not in base.lines or not choice.takes_source(source):
            continue
        gone = {where: at for where, at in source.read_to.offsets.items() if choice.takes(where)}
        if gone and len(gone) == len(source.read_to.offsets):
            raise CheckpointFolderError(
                checkpoint.folder, f"source {source.label} reads nothing else; delete it to begin with other topics"
            )
        steps += [MoveStep(source.label, where, at, None) for where, at in sorted(gone.items())]
        if gone:
            lines[source.key] = _without(source.read_to, gone.keys())
    return _added(checkpoint, lines, steps, now_ms)


def plan_rename(checkpoint: Checkpoint, old: str, new: str, now_ms: int) -> Move:
    """Determine the batch in which the source ``old`` has the name ``new``, at the same position.

    Raises:
        CheckpointFolderError: The query has no such source, reads something else with it, or has the new name already.
    """
    base = checkpoint.committed
    assert base is not None  # it was checked
    found = {source.name: source for source in read_sources(checkpoint) if source.key in base.lines}
    source = found.get(old)
    if source is None or source.read_to is None:
        names = ", ".join(name for name, one in found.items() if name is not None and one.read_to is not None)
        raise CheckpointFolderError(
            checkpoint.folder, f"its sources with a name that read MetaQ or RocketMQ are: {names or 'none'}"
        )
    if not _NAME.fullmatch(new) or new in base.lines:
        raise CheckpointFolderError(
            checkpoint.folder, f"{new!r} is no new name: Spark takes letters, digits and underscores, each name once"
        )
    lines = {name: line for name, line in base.lines.items() if name != old}
    lines[new] = _without(source.read_to, ())
    steps = [MoveStep(new, where, at, at) for where, at in sorted(source.read_to.offsets.items())]
    return _added(checkpoint, {name: lines[name] for name in numbered(lines)}, steps, now_ms)


def _added(checkpoint: Checkpoint, lines: Mapping[str, str], steps: Sequence[MoveStep], now_ms: int) -> Move:
    if not steps:
        raise CheckpointFolderError(checkpoint.folder, "no partition of the query is selected")
    assert checkpoint.committed is not None
    metadata = {key: value for key, value in checkpoint.committed.metadata.items() if key != CONTROL_BATCH}
    metadata["batchTimestampMs"] = max(now_ms, int(metadata.get("batchTimestampMs", 0)))
    metadata["batchWatermarkMs"] = max(checkpoint.watermark_ms, int(metadata.get("batchWatermarkMs", 0)))
    offsets = replace(checkpoint.committed.offsets, metadata=metadata, lines=lines)
    return Move(MicroBatch(checkpoint.next_batch_id, offsets), tuple(steps))


def _without(read_to: Progress, gone: Collection[TopicPartition]) -> str:
    offsets = {where: at for where, at in read_to.offsets.items() if where not in gone}
    incarnations = {where: one for where, one in read_to.incarnations.items() if where not in gone}
    last = {where: one for where, one in read_to.last.items() if where not in gone}
    return json.dumps(to_json(offsets, incarnations, last, read_to.since) | {"moved": True})


def _chosen_sources(checkpoint: Checkpoint, choice: Choice) -> list[CheckpointSource]:
    assert checkpoint.committed is not None  # it was checked
    known = [source for source in read_sources(checkpoint) if source.key in checkpoint.committed.lines]
    ours = [source for source in known if source.format == choice.format]
    chosen = [source for source in ours if choice.takes_source(source)]
    if not chosen:
        labels = ", ".join(str(source.label) for source in ours) or "none"
        raise CheckpointFolderError(checkpoint.folder, f"its sources that read {choice.system} are: {labels}")
    return chosen


def _require_read(position: Specific, sources: Sequence[CheckpointSource], choice: Choice) -> None:
    read = {where for source in sources if source.read_to is not None for where in source.read_to.offsets}
    if unknown := [where for where in position.offsets if where not in read or not choice.takes(where)]:
        raise OptionError(OPTION, f"{min(unknown)} is no partition that the query reads and that was chosen")


def _available(
    cluster: Cluster, read_to: Progress, position: Position | AfterBatch, choice: Choice
) -> dict[TopicPartition, PartitionState]:
    """Return the brokers' ranges of the partitions to move.

    With JSON, only the partitions in it are asked for.
    """
    known = {where for where in read_to.offsets if choice.takes(where)}
    if isinstance(position, Specific):
        known &= position.offsets.keys()
    found = cluster.available(Named(tuple(sorted({where.topic for where in known})))) if known else {}
    if missing := known - found.keys():
        raise OptionError(OPTION, f"no broker that is named holds {min(missing)}; leave it out, or name its broker")
    return {where: found[where] for where in sorted(known)}


def _past(
    checkpoint: Checkpoint,
    source: CheckpointSource,
    position: AfterBatch,
    available: Mapping[TopicPartition, PartitionState],
) -> Specific:
    """Return the positions after an earlier batch; partitions that were unknown then start where they were noted."""
    then = _read_to(checkpoint, source, position.batch_id)
    if then is None:
        raise CheckpointFolderError(
            checkpoint.folder, f"batch {position.batch_id} says nothing of source {source.label}"
        )
    for where, one in available.items():
        if where in then.incarnations and one.incarnation not in (None, then.incarnations[where]):
            raise OptionError(OPTION, f"{where} was deleted and made again since batch {position.batch_id}")
    offsets = dict(then.offsets)
    for batch_id in range(position.batch_id + 1, checkpoint.next_batch_id):
        new = available.keys() - offsets.keys()
        noted = _read_to(checkpoint, source, batch_id) if new else None
        found = {} if noted is None else {where: _known(noted, where, available) for where in new}
        offsets |= {where: max(at, available[where].offsets.start) for where, at in found.items() if at is not None}
    return Specific({where: offsets.get(where, one.offsets.start) for where, one in available.items()})


def _read_to(checkpoint: Checkpoint, source: CheckpointSource, batch_id: int) -> Progress | None:
    """Return where a batch ended in a source; ``None`` if it says nothing of it."""
    lines = checkpoint.batch(batch_id).lines
    return read_line(lines[source.key]) if source.key in lines else None


def _resolve(
    cluster: Cluster, position: Position, available: Mapping[TopicPartition, PartitionState]
) -> dict[TopicPartition, int]:
    spans = {where: one.offsets for where, one in available.items()}
    bound = Bound(OPTION, position, latest_if_none=True)
    found = bound.resolve(spans, cluster.positions, _no_groups, _refuse)
    bound.check_boundaries(found, spans, cluster.positions)
    return found


def _no_groups(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    raise OptionError(OPTION, f"a consumer group's offsets are not looked up here, for {len(partitions)} partitions")


def _refuse(what: str) -> None:
    raise OptionError(OPTION, f"{what.removeprefix(OPTION + ': ')}; move to earliest or to an offset that is there")


def _known(read_to: Progress, where: TopicPartition, available: Mapping[TopicPartition, PartitionState]) -> int | None:
    before, now = read_to.incarnations.get(where), available[where].incarnation
    return read_to.offsets.get(where) if None in (before, now) or before == now else None


def _line(
    read_to: Progress, found: Mapping[TopicPartition, int], available: Mapping[TopicPartition, PartitionState]
) -> str:
    kept = {where: incarnation for where, incarnation in read_to.incarnations.items() if where not in found}
    incarnations = kept | incarnations_of({where: available[where] for where in found})
    last = {where: message for where, message in read_to.last.items() if where not in found}
    return json.dumps(to_json({**read_to.offsets, **found}, incarnations, last, read_to.since) | {"moved": True})
