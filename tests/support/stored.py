"""What tests of storage and engine are made of: frames with known content, partitions for them, puts, failing power."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

import pytest
from examples import spread
from metaq_broker.clock import Clock, ManualClock
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import Engine, OnDurable
from metaq_broker.log.engine.outcomes import Appended, Refusal
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog, Verify
from metaq_broker.log.segments.segment import delete_segment
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.testing import Fault, FaultyFiles, PowerCut

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import Frame, encode_frame, encode_stored
from metaq.formats.message_id import EPOCH_MS
from metaq.formats.stored_form import encode_head

FOLDER = "orders-0"
SMALL = LogSettings(segment_bytes_max=1000, index_interval_bytes=100)
ONE_SEGMENT = LogSettings(segment_bytes_max=1 << 30, index_interval_bytes=100)
START_MS = EPOCH_MS + 1_000_000
BROKER_ID = 5
STORED_HEAD = encode_head(0, 0, START_MS, bytes(8))
"""Of the messages in the stored form."""


def message_id(number: int) -> int:
    """Ids of one broker, one each millisecond."""
    return (START_MS + number - EPOCH_MS) << 22 | BROKER_ID << 12


def frame(number: int, body: bytes | None = None) -> bytes:
    """Message number ``number``: a body that says so, of 10 to 60 bytes; one of five is of a RocketMQ client."""
    if body is None:
        body = b"message %d " % number + b"x" * (number * 7 % 50)
        if number % 5 == 3:
            return encode_stored(b"", STORED_HEAD, b"", body[:11], message_id(number))
    return encode_frame(message_id(number), 0, body)


def frames(count: int, first: int = 0) -> list[bytes]:
    return [frame(number) for number in range(first, first + count)]


def open_log(
    root: Path,
    settings: LogSettings = ONE_SEGMENT,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    verify: Verify = "tail",
) -> PartitionLog:
    return PartitionLog.open(
        files or QuickFiles(), clock or ManualClock(START_MS), root / FOLDER, settings, verify=verify
    )


def filled(
    root: Path, stored: Iterable[bytes], settings: LogSettings = ONE_SEGMENT, *, clean: bool = True
) -> list[int]:
    """Write a partition with these frames, one append each; return their offsets. ``clean`` completes the index."""
    log = open_log(root, settings)
    offsets = [log.append([item]) for item in stored]
    log.sync()
    log.close(clean=clean)
    return offsets


def encoded(item: Frame) -> bytes:
    return encode_frame(item.message_id, item.flag, item.body)


def contents(log: PartitionLog) -> dict[int, bytes]:
    """All that a reader gets, by offset, frames as bytes; read through ``read`` in whole."""
    return {item.offset: encoded(item) for item in log.scan(log.start_offset)}


def by_offset(stored: Sequence[bytes], start: int = 0) -> dict[int, bytes]:
    result = {}
    for item in stored:
        result[start] = item
        start += len(item)
    return result


def drop_segments(log: PartitionLog, count: int, files: Files | None = None) -> None:
    """Remove the oldest segments, in the order of steps that retention has."""
    files = files or QuickFiles()
    log.first_entry(count).run()
    for segment in log.forget_segments(count):
        delete_segment(files, segment)


def last_segment(root: Path) -> Path:
    return max((root / FOLDER).glob("*.meta"))


class QuickFiles(Files):
    """The real disk without waiting for it, for tests in which no power is lost."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


def ends_before_the_cut(work: Callable[[], object]) -> bool:
    """Do ``work``; return whether it ended, or was stopped by a ``PowerCut``."""
    try:
        work()
    except PowerCut:
        return False
    return True


class Life(Protocol):
    """Work on the files of a folder, which remembers what it was promised."""

    def run(self, files: FaultyFiles) -> None:
        """Do the work."""

    def check(self, files: FaultyFiles) -> None:
        """See whether the promises hold after a restart."""


def each_call(folder: Path, life_in: Callable[[Path], Life]) -> Iterator[tuple[int, Path]]:
    """The number of each call of a life that changes files, from 1, and a folder for the life in which it fails.

    All calls in `make test-long`, else some; the last is among them.
    """
    (folder / "count").mkdir()
    counting = FaultyFiles(folder / "count")
    life_in(folder / "count").run(counting)
    for at in spread(range(1, len(counting.calls) + 1)):
        root = folder / str(at)
        root.mkdir()
        yield at, root


def cut_at_every_call(folder: Path, life_in: Callable[[Path], Life], kept: float) -> int:
    """Let the power go at each call that changes files, and twice in a row; return how many calls there are.

    ``kept`` is how much of an interrupted write is there.
    """
    at = 0
    for at, root in each_call(folder, life_in):
        files, life = FaultyFiles(root, Fault(at, None, kept)), life_in(root)
        with pytest.raises(PowerCut):
            life.run(files)
        after = files.crash(Random(at))
        life.check(after)
        life.check(after.crash(Random(at + 1)))
    return at


class SyncBench:
    """``reported`` has the names of logs that were acknowledged, in order, each with the error, if there was one."""

    def __init__(self, root: Path, files: Files, commit: GroupCommit) -> None:
        self.root, self.commit = root, commit
        self._files = files
        self.reported: list[tuple[str, Exception | None]] = []

    def open(self, folder: Path, settings: LogSettings) -> PartitionLog:
        """A log whose names are durable."""
        made = PartitionLog.open(self._files, ManualClock(START_MS), folder, settings)
        made.append(frames(1))
        made.sync()
        return made

    def put(self, *logs: PartitionLog) -> None:
        """Append a message to each, and wait for it to be durable: not before the caller goes on."""
        for log in logs:
            log.append(frames(1, log.end_ordinal))
            end, name = log.end_offset, log.name

            def done(error: Exception | None, log: PartitionLog = log, end: int = end, name: str = name) -> None:
                assert (error is None) == (log.readable_end >= end)
                self.reported.append((name, error))

            self.commit.wait(log, end, done)
            assert log.readable_end < end


B = TypeVar("B", bound=SyncBench)


def played(bench: B, scenario: Callable[[B], Coroutine[Any, Any, None]]) -> B:
    async def run() -> B:
        await scenario(bench)
        await bench.commit.drain()
        bench.commit.stop()
        return bench

    return asyncio.run(run())


def nobody_waits(_refusal: Refusal | None) -> None:
    """Nobody is notified of what becomes durable."""


def put(
    engine: Engine,
    topic: str,
    partition: int,
    bodies: Sequence[bytes] = (b"x",),
    on_durable: OnDurable = nobody_waits,
    *,
    independent: bool = True,
) -> Appended | Refusal:
    """Append messages; those of one batch, unless they are ``independent``."""
    block = FrameBlock.of([encode_frame(0, 0, body) for body in bodies])
    terms = Terms.PUTS if independent else Terms.BLOCK
    return engine.append(Append(topic, partition, block, terms), on_durable)
