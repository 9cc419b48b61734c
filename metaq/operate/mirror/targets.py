"""Which target partition receives the copies of a source partition, for all programs that copy topics.

The target of a source partition is assigned once and never changes, so the copies of a partition stay in one partition,
in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metaq.model import Partition


class TooFewPartitions(ValueError):
    """The target has fewer partitions than the source."""


def assign(
    topic: str,
    sources: Iterable[Partition],
    targets: Sequence[Partition],
    known: Mapping[Partition, Partition],
    *,
    fold: bool,
) -> dict[Partition, Partition]:
    """Return ``known``, and a target for each of ``sources`` that has none.

    Sources in order of broker and index get the free ``targets`` in the same order. With ``fold``, the n-th source
    (from 0) that finds none free shares target n modulo their number.

    Raises:
        TooFewPartitions: None is free, and ``fold`` is false. Names ``topic``.
    """
    settled = dict(known)
    wanting, targets = sorted(set(sources) - set(known)), sorted(targets)
    free = (target for target in targets if target not in set(known.values()))
    for source in wanting:
        target = next(free, None)
        if target is None and not fold:
            raise TooFewPartitions(
                f"topic {topic!r}: {len(known) + len(wanting)} partitions at the source, only {len(targets)} at the "
                f"target, and none is left for {source}; give the target's topic more, or let them share with --fold"
            )
        settled[source] = target or targets[len(settled) % len(targets)]
    return settled
