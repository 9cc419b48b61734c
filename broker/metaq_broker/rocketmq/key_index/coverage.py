"""The messages that an index covers: ranges of ordinals of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaq_broker.rocketmq.key_index.run_file import Covered

Partition = tuple[str, int]
"""A name and an index; a recreated partition has another name."""


class Coverage:
    """Ranges of ordinals by partition, joined where they meet."""

    def __init__(self, covered: Iterable[Covered] = ()) -> None:
        self._ranges: dict[Partition, list[tuple[int, int]]] = {}
        for each in covered:
            self.add(each)

    def add(self, covered: Covered) -> None:
        """Add a range; an empty one adds nothing."""
        if covered.first >= covered.end:
            return
        ranges = self._ranges.setdefault((covered.topic, covered.partition), [])
        if ranges and ranges[-1][0] <= covered.first <= ranges[-1][1]:  # extends the last range, the usual case
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], covered.end)
            return
        joined: list[tuple[int, int]] = []
        for first, end in sorted([*ranges, (covered.first, covered.end)]):
            if joined and first <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end)
            else:
                joined.append((first, end))
        self._ranges[covered.topic, covered.partition] = joined

    def end(self, topic: str, partition: int) -> int | None:
        """Return where the last range of a partition ends, ``None`` without one."""
        ranges = self._ranges.get((topic, partition))
        return ranges[-1][1] if ranges else None

    def gaps(self, topic: str, partition: int, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of ``first`` to below ``end`` that are not covered."""
        gaps, at = [], first
        for covered_first, covered_end in self._ranges.get((topic, partition), ()):
            if covered_first > at:
                gaps.append((at, min(covered_first, end)))
            at = max(at, covered_end)
            if at >= end:
                break
        if at < end:
            gaps.append((at, end))
        return [(low, high) for low, high in gaps if low < high]

    def __iter__(self) -> Iterator[Covered]:
        for (topic, partition), ranges in self._ranges.items():
            for first, end in ranges:
                yield Covered(topic, partition, first, end)

    def __bool__(self) -> bool:
        return bool(self._ranges)
