"""How long a data folder takes to open: after a clean stop, after a kill, with everything verified; many partitions.

    python benchmarks/open_log.py [--runs 3] [--scale 1] [--json FILE] [--gib 2] [--partitions 4] [--segment-mib 256]
                                  [--message-bytes 1000] [--folder DIR]

Builds a folder of ``--gib`` times the scale (with units of about 1 MiB, whose bytes are all alike) and opens it with
``LogStore``, with one thread and with several (``loadMessageStoresInParallel``). "cold": the files are taken out of the
page cache before. "kill": without the mark of a clean stop, as after ``kill -9``. "all verified" is
``verifyAtStart=full``, the same work as ``metaq-broker fsck``. The peer is a bare CRC-32 over the same bytes, cold:
what reading all of it takes. Medians of runs in turn; less is better.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from figures import Figure, Report, arguments
from metaq_broker.clock import Clock
from metaq_broker.storage.files import Files
from metaq_broker.storage.log_store import LogStore
from metaq_broker.storage.marks import Marks
from metaq_broker.storage.partition_log import LogSettings, Verify

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker

GIB, MIB = 1 << 30, 1 << 20
MARK_BYTES = 1 << 14
CLEAN_MARK = "clean-shutdown"
RUNS = 3


def open_store(folder: Path, settings: LogSettings, verify: Verify = "tail", threads: int = 1) -> LogStore:
    return LogStore.open(Files(), Clock(), folder, lambda topic: settings, verify=verify, load_threads=threads)


def build(folder: Path, settings: LogSettings, partitions: int, bytes_each: int, message_bytes: int) -> None:
    """Fill every partition with copies of one unit, and stop cleanly."""
    ids = IdWorker(0).reserve(MIB // message_bytes, Clock().now_ms())
    frames = [encode_frame(message_id, 0, bytes(message_bytes - 20)) for message_id in ids]
    block, step = b"".join(frames), max(1, MARK_BYTES // message_bytes)
    marks = Marks()
    for number in range(0, len(frames), step):
        marks.add(number * message_bytes, number)
    store = open_store(folder, settings)
    for index in range(partitions):
        log = store.get_or_create("bench", index)
        while log.end_offset + len(block) <= bytes_each:
            log.append_block(block, len(frames), marks)
            if log.end_offset - log.readable_end > 256 * MIB:
                log.sync()
        if log.end_offset < bytes_each:
            log.append(frames[: max(1, (bytes_each - log.end_offset) // message_bytes)])
        log.sync()
    store.close()


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def forget_cache(folder: Path) -> None:
    """Take all files out of the page cache; they are durable."""
    for path in files_of(folder):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def opened(folder: Path, settings: LogSettings, verify: Verify, threads: int, *, clean: bool, cold: bool) -> float:
    """Open the folder once and stop cleanly again; seconds that the opening took."""
    if not clean:
        (folder / CLEAN_MARK).unlink()
    if cold:
        forget_cache(folder)
    started = time.perf_counter()
    store = open_store(folder, settings, verify, threads)
    seconds = time.perf_counter() - started
    store.close()
    return seconds


def summed(paths: Iterable[Path]) -> float:
    """Read files and compute CRC-32 over them, 1 MiB at a time; seconds."""
    started = time.perf_counter()
    for path in paths:
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while data := file.read(MIB):
                checksum = zlib.crc32(data, checksum)
    return time.perf_counter() - started


def summed_cold(folder: Path) -> float:
    """The peer: seconds of a bare CRC-32 over all segments, which are not in the page cache."""
    forget_cache(folder)
    return summed(path for path in files_of(folder) if path.suffix == ".meta")


def opening(report: Report, folder: Path, settings: LogSettings, runs: int) -> None:
    """One figure for each way to open the folder."""
    many = (os.cpu_count() or 1) + 2
    once = partial(opened, folder, settings)
    ways: dict[str, Callable[[], float]] = {
        "clean stop, warm": partial(once, "tail", 1, clean=True, cold=False),
        "clean stop, cold": partial(once, "tail", 1, clean=True, cold=True),
        "clean stop, cold, several threads": partial(once, "tail", many, clean=True, cold=True),
        "kill, cold": partial(once, "tail", 1, clean=False, cold=True),
        "kill, cold, several threads": partial(once, "tail", many, clean=False, cold=True),
        "all verified, cold": partial(once, "full", 1, clean=True, cold=True),
    }
    every: list[Callable[[], float]] = [partial(summed_cold, folder), *ways.values()]
    turns = [[way() for way in every] for _ in range(runs)]
    floor, *seconds = (statistics.median(times) for times in zip(*turns, strict=True))
    for name, each in zip(ways, seconds, strict=True):
        report.add(Figure(f"open: {name}", "s", each, floor, "bare CRC-32 of all bytes", "less"))


def main() -> None:
    parser = arguments(__doc__, RUNS)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--segment-mib", type=int, default=256)
    parser.add_argument("--message-bytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    given = parser.parse_args()
    settings = LogSettings(segment_bytes_max=given.segment_mib * MIB)
    bytes_each = int(given.gib * given.scale * GIB) // given.partitions
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name) / "data"
        build(folder, settings, given.partitions, bytes_each, given.message_bytes)
        size = sum(path.stat().st_size for path in files_of(folder) if path.suffix == ".meta")
        title = f"Opening {size / GIB:.2f} GiB in {given.partitions} partitions, messages of {given.message_bytes} B"
        with Report(title, given.json) as report:
            opening(report, folder, settings, given.runs)


if __name__ == "__main__":
    main()
