"""Checks of the stored frames alone: ends of partitions, intact payloads, and unique ids."""

from __future__ import annotations

from collections.abc import Iterator

from faults.checker.anomaly import Anomaly, Case, Kind
from faults.stored import Image, PartitionImage, PartitionKey, StoredFrame


def check_images(case: Case) -> list[Anomaly]:
    """Check the stored frames without regard to the history."""
    found: list[Anomaly] = []
    for image in case.image.values():
        found += _shape(image, case.retention)
        found += _payloads(image)
    return found + list(_ids(case.image))


def _shape(image: PartitionImage, retention: bool) -> Iterator[Anomaly]:
    if image.start != 0 and not retention:
        yield Anomaly(Kind.START, f"{image.partition_key} begins at {image.start}", image.partition_key)
    if image.fault:
        kind = Kind.CORRUPT if image.fault.startswith("corrupt") else Kind.BAD_END
        yield Anomaly(kind, f"{image.partition_key}: {image.fault}", image.partition_key)


def _payloads(image: PartitionImage) -> Iterator[Anomaly]:
    for frame in image.frames:
        if frame.key is None:
            yield Anomaly(Kind.ALTERED, f"{image.partition_key}: {frame}", image.partition_key)


def _ids(image: Image) -> Iterator[Anomaly]:
    first: dict[int, tuple[PartitionKey, StoredFrame]] = {}
    for partition in image.values():
        for frame in partition.frames:
            partition_key, other = first.setdefault(frame.message_id, (partition.partition_key, frame))
            if other is not frame:
                keys = tuple(each for each in (other.key, frame.key) if each is not None)
                yield Anomaly(
                    Kind.SAME_ID,
                    f"{partition_key}: {other}; {partition.partition_key}: {frame}",
                    partition.partition_key,
                    keys,
                )
