"""Shows that cost does not depend on the size of a log, and is proportional to the number of messages.

    python benchmarks/log_size.py [--gib 2] [--folder DIR] [--runs 5] [--scale 1] [--json FILE]

Fills one partition of a broker with ``--gib`` GiB by batched puts, each acknowledged after fsync, and one of another
broker with 1 % of that. The last 1 % of the large log and the whole of the small one have the same bytes. Measured
alternately: reading them through Spark and with ``read_range``; planning a batch of a stream; looking up frame
boundaries and times; starting the broker after a clean stop. The ratios should be about 1.

After the filling, everything is removed from the page cache, and the first, unmeasured run reads the data that the
measured runs read again. So these data are warm on both sides, and nothing else of the large log is in memory.

At last, reads of 1, 2 and 4 million messages through Spark: seconds for each million, beside the smallest read.

Needs a little more disk space than ``--gib``; the files are removed afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from figures import Figure, Report, arguments, medians
from pyspark.sql import SparkSession
from spark_read import to_noop
from stage import TOPIC, running_broker, spark

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.boundaries import first_at_time, frame_boundary
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.range_reader import read_range
from metaq.backends.metaq.session import Session
from metaq.formats.frames import walk
from metaq.formats.message_id import timestamp_ms
from metaq.model import Address, Message, OffsetRange
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.options.table import Use
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.spark_version import ReadMaxBytes

GIB = 1 << 30
BLOCK_BYTES = 1 << 20
SPARE_SHARE, SPARE_BYTES = 0.02, GIB // 2
"""Disk space for indexes and other files."""


class Filled(NamedTuple):
    """The end offset and the number of the messages that were put."""

    end: int
    messages: int


def bytes_needed(*sizes: float) -> int:
    """Return the disk space that logs of these sizes need, with a reserve."""
    return int(sum(sizes) * (1 + SPARE_SHARE)) + SPARE_BYTES


def check_space(folder: Path, needed: int, free: int) -> None:
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
    """Remove all files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


SHARE = 0.01
PARTITION = "0-0"
LOOKUPS = 1500
PLANS = 50
READS = 4
"""Repetitions in one measurement, so that it takes long enough."""

LINEAR_ROWS = (1_000_000, 2_000_000, 4_000_000)
LINEAR_FRAME_BYTES = 120


@dataclass(frozen=True)
class Log:
    """One partition of a running broker, and the part of it that is read."""

    address: Address
    part: OffsetRange

    def through_spark(self, session: SparkSession) -> Callable[[], None]:
        """Read the part, by offsets given in JSON."""
        start = json.dumps({TOPIC: {PARTITION: self.part.start}})
        options = {"brokers": str(self.address), "subscribe": TOPIC, "startingOffsets": start}
        frame = session.read.format("metaq").options(**options).load()
        return partial(to_noop, frame)

    def directly(self) -> int:
        """Read the part several times; return the number of bytes."""
        session = Session.connect(self.address)
        size = sum(len(run.data) for _ in range(READS) for run in read_range(session, TOPIC, 0, self.part))
        session.close()
        return size

    def plan(self) -> None:
        """Plan the first micro-batch over the whole log several times, limited so that its end must be looked up."""
        for _ in range(PLANS):
            pool = SessionPool()
            options = {"brokers": str(self.address), "subscribe": TOPIC, "startingOffsets": "earliest"}
            reader = StreamReader(MetaQSource(parse_source_options(options, Use.STREAM_READ), pool))
            start = reader.initialOffset()
            assert len(reader.partitions(start, reader.latestOffset(start, ReadMaxBytes(self.part.end // 2)))) == 1
            pool.close()

    def find_boundaries(self) -> None:
        """Look up frame boundaries at offsets all over the log."""
        self._look_up(frame_boundary, 0, self.part.end)

    def find_times(self) -> None:
        """Look up messages at times all over the log."""
        session = Session.connect(self.address)
        first, last = (time_at(session, offset) for offset in (0, self.part.start))
        session.close()
        self._look_up(first_at_time, first, last + 1)

    def _look_up(self, ask: Callable[[Session, str, int, int], int], least: int, most: int) -> None:
        chance, session = random.Random(1), Session.connect(self.address)
        for _ in range(LOOKUPS):
            assert 0 <= ask(session, TOPIC, 0, chance.randrange(least, most)) <= self.part.end
        session.close()


def time_at(session: Session, offset: int) -> int:
    """Return when the broker stored the message at ``offset``, in ms since 1970."""
    run = next(read_range(session, TOPIC, 0, OffsetRange(offset, offset + 1)))
    time_ms = timestamp_ms(next(walk(run.data)).message_id)
    assert time_ms is not None
    return time_ms


@dataclass(frozen=True)
class Sizes:
    """The two logs to compare."""

    name: str
    folders: tuple[Path, Path]
    ends: tuple[int, int]

    @contextmanager
    def logs(self) -> Iterator[list[Log]]:
        """Run both brokers; yield the logs, the large one first."""
        large, small = self.folders
        with running_broker(large, 1) as first, running_broker(small, 1) as second:
            session = Session.connect(first.address)
            start = frame_boundary(session, TOPIC, 0, self.ends[0] - self.ends[1])
            session.close()
            yield [
                Log(first.address, OffsetRange(start, self.ends[0])),
                Log(second.address, OffsetRange(0, self.ends[1])),
            ]


def filled(report: Report, folder: Path, gib: float) -> Sizes:
    """Fill both logs, report how fast, and remove them from the page cache."""
    large, small = folder / "large", folder / "small"
    with running_broker(large, 1) as broker:
        start = time.perf_counter()
        whole = fill(broker.address, TOPIC, int(gib * GIB), 1000)
        megabytes = whole.end / 1e6 / (time.perf_counter() - start)
    report.add(Figure(f"fill a log of {gib:g} GiB, 1000 B, one connection", "MB/s", megabytes))
    with running_broker(small, 1) as broker:
        part = fill(broker.address, TOPIC, int(gib * GIB * SHARE), 1000)
    for place in (large, small):
        forget_cache(place)
    return Sizes(f"a {gib:g} GiB log", (large, small), (whole.end, part.end))


def report_parts(report: Report, sizes: Sizes, session: SparkSession, runs: int) -> None:
    """Measure reads, plans and lookups of the large log beside the small one."""
    with sizes.logs() as logs:
        megabytes = [len(log.part) / 1e6 for log in logs]

        def speed(what: str, actions: list[Callable[[], object]], reads: int = 1) -> None:
            times = medians(actions, runs)
            ours, peer = (reads * size / each for size, each in zip(megabytes, times, strict=True))
            report.add(Figure(f"{what}, last 1 % of {sizes.name}", "MB/s", ours, peer, "log of that size", aim=0.9))

        def cost(what: str, of: Callable[[Log], object], count: int) -> None:
            times = medians([partial(of, log) for log in logs], runs)
            ours, peer = (each * 1e3 / count for each in times)
            report.add(Figure(f"{what}, {sizes.name}", "ms", ours, peer, "1 % of it", "less", aim=1.1))

        speed("read through Spark", [log.through_spark(session) for log in logs])
        speed("read directly", [log.directly for log in logs], READS)
        cost("plan a micro-batch", Log.plan, PLANS)
        cost("look up a frame boundary", Log.find_boundaries, LOOKUPS)
        cost("look up a time", Log.find_times, LOOKUPS)


def report_starts(report: Report, sizes: Sizes, runs: int) -> None:
    """Measure how long a broker takes from its start, after a clean stop, until it is ready."""

    def start(folder: Path) -> float:
        with running_broker(folder, 1) as broker:
            return broker.ready_s

    times = [[start(folder) for folder in sizes.folders] for _ in range(runs + 1)][1:]
    ours, peer = (statistics.median(each) for each in zip(*times, strict=True))
    report.add(Figure(f"start the broker of {sizes.name}", "s", ours, peer, "1 % of it", "less", aim=1.1))


def report_linearity(report: Report, folder: Path, session: SparkSession, runs: int, scale: float) -> None:
    """Measure seconds for a million messages, with few and with many."""
    counts = [int(rows * scale) for rows in LINEAR_ROWS]
    with running_broker(folder / "linear", 1) as broker:
        topics = {f"{TOPIC}-{count}": count * LINEAR_FRAME_BYTES for count in counts}
        really = [fill(broker.address, topic, size, 100).messages for topic, size in topics.items()]
        reader = session.read.format("metaq").option("brokers", str(broker.address))
        taken = medians([partial(to_noop, reader.option("subscribe", topic).load()) for topic in topics], runs)
    least, *costs = (1e6 * each / count for each, count in zip(taken, really, strict=True))
    first = f"{counts[0]:,} messages"
    report.add(Figure(f"read, {first}", "s/million", least, better="less"))
    for count, cost in zip(counts[1:], costs, strict=True):
        report.add(Figure(f"read, {count:,} messages", "s/million", cost, least, first, "less", aim=1.1))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the large log (default 2), times --scale")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    given = parser.parse_args(words)
    run(given)


def run(given: argparse.Namespace) -> None:
    """Run everything in a folder that is removed afterwards."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as for Ctrl-C: the files are removed
    gib, place = given.gib * given.scale, given.folder or Path(tempfile.gettempdir())
    linear = sum(LINEAR_ROWS) * given.scale * LINEAR_FRAME_BYTES
    check_space(place, bytes_needed(gib * GIB, gib * GIB * SHARE, linear), shutil.disk_usage(place).free)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=given.folder) as name,
        Report("Size of the log, number of messages", given.json) as report,
    ):
        sizes = filled(report, Path(name), gib)
        with spark(unix_socket=False) as session:
            report_parts(report, sizes, session, given.runs)
            report_linearity(report, Path(name), session, given.runs, given.scale)
        report_starts(report, sizes, given.runs)


if __name__ == "__main__":
    main()
