"""What a checkpoint says about batches that a sink does not know any more: whether the query was moved back.

A sink whose brokers were put back to an older copy refuses the next batch. ``metaq-spark checkpoint move`` lets the
query read again what the missing batches had read; the batch that moves it must then be let through, and no other.
"""

from __future__ import annotations

from metaq_spark.checkpoint.folder import Batch, local_folder, read_batch
from metaq_spark.checkpoint.sources import is_move, read_line
from metaq_spark.errors import ConnectorError


def has_batch(place: str, batch_id: int) -> bool:
    """Whether the checkpoint is on this machine and has the batch."""
    return _batch(place, batch_id) is not None


def leads_back(place: str, batch_id: int, missing: tuple[int, int]) -> bool:
    """Whether batch ``batch_id`` moves the query so far back that what the batches ``missing`` have read is read again.

    ``missing`` are the first and the last of them. Batches that were planned and never committed need not be: they were
    abandoned with the move. What cannot be found out counts as no.
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
    return then is not None and len(then.lines) == len(batch.lines) and all(map(_not_behind, batch.lines, then.lines))


def _not_behind(line: str, then: str) -> bool:
    """Whether a source goes on at, or before, where it was ``then``."""
    progress, before = read_line(line), read_line(then)
    if progress is None or before is None:
        return line == then
    return all(at <= before.offsets.get(where, at) for where, at in progress.offsets.items())


def _batch(place: str, batch_id: int) -> Batch | None:
    try:
        return read_batch(local_folder(place), batch_id)
    except (OSError, ConnectorError):
        return None
