"""The demo's check: the lines in the output must equal the lines of the input, in order, byte for byte.

It uses neither Spark nor the broker. The input is read from the files; the output is one iterator of messages for each
partition. ``lines_to_topic`` distributed the files over the partitions in blocks, so the position of a line's first
byte determines its partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SHOWN_BYTES_MAX = 80


@dataclass
class Count:
    """Lines, and their bytes with line ends."""

    lines: int = 0
    byte_count: int = 0

    def add(self, line: bytes) -> None:
        self.lines += 1
        self.byte_count += len(line)


@dataclass
class Comparison:
    """Input, output, and the first difference between them (``None``: none)."""

    sent: Count = field(default_factory=Count)
    received: Count = field(default_factory=Count)
    difference: str | None = None

    @property
    def equal(self) -> bool:
        return self.difference is None and self.sent == self.received

    def note(self, difference: str) -> None:
        """Record a difference, if it is the first."""
        self.difference = self.difference or difference


def count(files: Sequence[Path]) -> Count:
    """Return the lines and bytes of the files."""
    total = Count()
    for file in files:
        with file.open("rb") as stream:
            for line in stream:
                total.add(line)
    return total


def compare(files: Sequence[Path], came_out: Sequence[Iterator[bytes]], block_bytes: int) -> Comparison:
    """Read the files line by line, and for each line take the next message of its partition."""
    result = Comparison()
    for place, line, partition in _dealt_lines(files, len(came_out), block_bytes):
        result.sent.add(line)
        received = next(came_out[partition], None)
        if received is None:
            result.note(f"{place}: the line is missing from partition {partition}: {_shown(line)}")
            continue
        result.received.add(received)
        if received != line:
            result.note(f"{place}: sent {_shown(line)}, received {_shown(received)}")
    for partition, rest in enumerate(came_out):
        for received in rest:
            result.received.add(received)
            result.note(f"partition {partition}: one message too many: {_shown(received)}")
    return result


def _dealt_lines(files: Sequence[Path], partitions: int, block_bytes: int) -> Iterator[tuple[str, bytes, int]]:
    first_block = 0
    for file in files:
        position = 0
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                partition = (first_block + position // block_bytes) % partitions
                yield f"{file}:{number}", line, partition
                position += len(line)
        first_block += -(-position // block_bytes)


def _shown(line: bytes) -> str:
    return repr(line[:SHOWN_BYTES_MAX]) + ("..." if len(line) > SHOWN_BYTES_MAX else "")
