"""Checks in a checkpoint whether a query was moved back before batches that its sink has lost.

A sink whose brokers were restored from an older copy refuses the next batch. ``metaq-spark checkpoint move`` makes the
query read again what the missing batches had read; then exactly the batch that moves it must be accepted.
"""

from __future__ import annotations

from metaq_spark.checkpoint.folder import MicroBatch, local_folder, read_batch
from metaq_spark.checkpoint.sources import is_move, read_line
from metaq_spark.errors import ConnectorError


def has_batch(place: str, batch_id: int) -> bool:
    """Whether the checkpoint is on this machine and has the batch."""
    return _batch(place, batch_id) is not None


def leads_back(place: str, batch_id: int, missing: tuple[int, int]) -> bool:
    """Return whether batch ``batch_id`` moves the query back far enough to read again what the ``missing`` batches
    read.

    ``missing`` are the first and the last of them. Planned batches that were never committed are ignored: the move
    abandoned them. If it cannot be determined, return false.
    """
    batch = _batch(place, batch_id)
    if batch is None or not is_move(batch):
        return False
    first, final = missing
    if first == 0:
        return True  # where the first batch began is not recorded; the operator has chosen
    if not any((local_folder(place) / "commits" / str(number)).exists() for number in range(first, final + 1)):
        return all(_batch(place, number) is not None for number in range(first, final + 1))
    then = _batch(place, first - 1)
    if then is None or then.lines.keys() != batch.lines.keys():
        return False  # a source was added or removed since; where it began, or ended, is not recorded
    return all(_not_behind(batch.lines[name], line) for name, line in then.lines.items())


def _not_behind(line: str, then: str) -> bool:
    """Return whether a source continues at or before its position ``then``."""
    progress, before = read_line(line), read_line(then)
    if progress is None or before is None:
        return line == then
    return all(at <= before.offsets.get(where, at) for where, at in progress.offsets.items())


def _batch(place: str, batch_id: int) -> MicroBatch | None:
    try:
        return read_batch(local_folder(place), batch_id)
    except (OSError, ConnectorError):
        return None
