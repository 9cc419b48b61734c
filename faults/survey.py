"""Reads all stored messages: through the broker like a consumer, or directly from the files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from faults.stored import Image, PartitionImage, PartitionKey, image_of
from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.session import Session
from metaq.discovery.stats import parse_offsets
from metaq.protocols.text.commands import Stats

FETCH_BYTES: Final = 1 << 18
SEGMENT_SUFFIX: Final = ".meta"


def survey(session: Session) -> Image:
    """Read every partition of the broker from its first to its last readable byte.

    Raises:
        MetaqError: The broker refuses, or does not answer.
    """
    ranges = parse_offsets(session.ask(Stats("offsets", 0)))
    return {
        partition_key: image_of(
            partition_key, span.start, span.end, _bytes(session, partition_key, span.start, span.end)
        )
        for partition_key, span in ((PartitionKey(*key), span) for key, span in ranges.items())
    }


def failures(session: Session) -> list[str]:
    """Return the failures that the broker reports: read-only partitions, damaged ranges, refused folders."""
    lines = session.ask(Stats("failures", 0)).split("\r\n")
    return [line for line in lines if line not in ("STATS", "END", "")]


def _bytes(session: Session, partition_key: PartitionKey, start: int, end: int) -> Iterator[bytes]:
    offset = start
    while offset < end:
        answer = fetch(session, partition_key.topic, partition_key.index, offset, min(FETCH_BYTES, end - offset))
        if not isinstance(answer, Run):
            return  # the image then ends too early
        yield answer.data
        offset = answer.end


def survey_files(data: Path) -> Image:
    """Read the segment files of a stopped broker, every one completely."""
    folders = sorted(path for path in data.iterdir() if path.is_dir() and path.name != "transactions")
    images = {}
    for folder in folders:
        topic, _, index = folder.name.rpartition("-")
        if topic and index.isdecimal():
            partition_key = PartitionKey(topic, int(index))
            images[partition_key] = _files_image(partition_key, folder)
    return images


def _files_image(partition_key: PartitionKey, folder: Path) -> PartitionImage:
    segments = sorted(folder.glob(f"*{SEGMENT_SUFFIX}"), key=lambda path: int(path.stem))
    starts = [int(path.stem) for path in segments]
    sizes = [path.stat().st_size for path in segments]
    for start, size, following in zip(starts, sizes, starts[1:], strict=False):
        if start + size != following:
            return PartitionImage(
                partition_key, starts[0], start + size, (), f"segment {start} ends before {following}"
            )
    if not segments:
        return PartitionImage(partition_key, 0, 0, ())
    return image_of(partition_key, starts[0], starts[-1] + sizes[-1], (path.read_bytes() for path in segments))
