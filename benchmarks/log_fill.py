"""Filling a log to a size: how much room that needs, batched puts, and the page cache afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message

GIB = 1 << 30
BLOCK_BYTES = 1 << 20
SPARE_SHARE, SPARE_BYTES = 0.02, GIB // 2
"""Room for indexes and for what else is written."""


class Filled(NamedTuple):
    """What was put: up to which offset, and how many messages."""

    end: int
    messages: int


def bytes_needed(*sizes: float) -> int:
    """Room on the disk that logs of these sizes take, with some to spare."""
    return int(sum(sizes) * (1 + SPARE_SHARE)) + SPARE_BYTES


def check_room(folder: Path, needed: int, free: int) -> None:
    """End the program if ``free`` bytes are not enough."""
    if free < needed:
        sys.exit(
            f"{folder} has {free / GIB:.1f} GiB free, {needed / GIB:.1f} GiB are needed; "
            "give less with --gib, or another place with --folder"
        )


def fill(address: Address, topic: str, size: int, payload_bytes: int) -> Filled:
    """Put at least ``size`` bytes of messages into partition 0 of an empty topic, all of them acknowledged."""
    count = BLOCK_BYTES // (payload_bytes + 20)
    block, _ = encode_block(Message(os.urandom(payload_bytes)) for _ in range(count))
    blocks = -(-size // len(block))
    session = Session.connect(address)
    writer = BatchWriter(session, topic)
    for _ in range(blocks):
        writer.write(0, block, count)
    writer.flush()
    session.close()
    return Filled(blocks * len(block), blocks * count)


def forget_cache(folder: Path) -> None:
    """Take all files out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
