"""Offsets in both forms, Spark's and ours, so that none is converted twice.

Spark hands a source the same few offsets again and again: of an idle query one, some ten times a second, of a running
one the start and the end of a batch, each in several calls. With thousands of partitions the conversion would be most
of what the query does.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from metaq_spark.offsets import Progress, read_progress, to_json

_KEPT: Final = 4
"""Start and end of a batch, the newest end, and one that is being made."""


class ProgressMemory:
    """The last few offsets that were read or written."""

    def __init__(self) -> None:
        self._known: deque[tuple[Progress, dict[str, Any]]] = deque(maxlen=_KEPT)

    def read(self, tree: Any) -> Progress:
        """``offsets.read_progress``; for an offset that is known the same object as before."""
        for progress, known in self._known:
            if known == tree:
                return progress
        progress = read_progress(tree)
        self._known.append((progress, _copy(tree)))
        return progress

    def write(self, progress: Progress) -> dict[str, Any]:
        """``offsets.to_json``."""
        for known, tree in self._known:
            if known is progress:
                return _copy(tree)
        tree = to_json(progress.offsets, progress.incarnations)
        self._known.append((progress, tree))
        return _copy(tree)


def _copy(tree: dict[str, Any]) -> dict[str, Any]:
    """What the caller does to one of them must not reach the other."""
    return {
        key: {topic: dict(values) for topic, values in each.items()} if isinstance(each, dict) else each
        for key, each in tree.items()
    }
