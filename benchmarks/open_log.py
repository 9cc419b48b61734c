"""How long a data folder takes to open: after a clean stop, after a kill, with everything verified; many partitions.

    python benchmarks/open_log.py [--gib 2] [--partitions 4] [--segment-mib 256] [--message-bytes 1000] [--folder DIR]

Builds a folder of that size (with units of about 1 MiB, whose bytes are all alike) and opens it with ``LogStore``, with
one thread and with several (``loadMessageStoresInParallel``). "cold": the files are taken out of the page cache before.
"kill": without the mark of a clean stop, as after ``kill -9``. "full": ``verifyAtStart=full``, the same work as
``metaq-broker fsck``; its floor is a bare CRC-32 over the same bytes, cold too. "ratio" is full / floor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from metaq_broker.clock import Clock
from metaq_broker.files import Files
from metaq_broker.log.log_store import LogStore
from metaq_broker.log.partition_log import LogSettings, Verify

from metaq.message_id import IdWorker
from metaq.wire.text.frames import encode_frame

GIB, MIB = 1 << 30, 1 << 20
MARK_BYTES = 1 << 14
CLEAN_MARK = "clean-shutdown"


def open_store(folder: Path, settings: LogSettings, verify: Verify = "tail", threads: int = 1) -> LogStore:
    return LogStore.open(Files(), Clock(), folder, lambda topic: settings, verify=verify, load_threads=threads)


def build(folder: Path, settings: LogSettings, partitions: int, bytes_each: int, message_bytes: int) -> None:
    """Fill every partition with copies of one unit, and stop cleanly."""
    ids = IdWorker(0).reserve(MIB // message_bytes, Clock().now_ms())
    frames = [encode_frame(message_id, 0, bytes(message_bytes - 20)) for message_id in ids]
    block, step = b"".join(frames), max(1, MARK_BYTES // message_bytes)
    marks = [(number * message_bytes, number) for number in range(0, len(frames), step)]
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


def report(folder: Path, settings: LogSettings) -> None:
    many = (os.cpu_count() or 1) + 2
    print(f"{'opening':>8} {'cache':>6} {'threads':>8} {'seconds':>9}")
    for clean, cold, threads in [
        (True, False, 1),
        (True, True, 1),
        (True, True, many),
        (False, True, 1),
        (False, True, many),
    ]:
        seconds = opened(folder, settings, "tail", threads, clean=clean, cold=cold)
        stop, cache = "clean" if clean else "kill", "cold" if cold else "warm"
        print(f"{stop:>8} {cache:>6} {threads:>8} {seconds:>9.3f}", flush=True)
    full = opened(folder, settings, "full", 1, clean=True, cold=True)
    print(f"{'full':>8} {'cold':>6} {1:>8} {full:>9.3f}", flush=True)
    forget_cache(folder)
    floor = summed(path for path in files_of(folder) if path.suffix == ".meta")
    print(f"{'floor':>8} {'cold':>6} {1:>8} {floor:>9.3f}   ratio {full / floor:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--segment-mib", type=int, default=256)
    parser.add_argument("--message-bytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    settings = LogSettings(segment_bytes_max=options.segment_mib * MIB)
    bytes_each = int(options.gib * GIB) // options.partitions
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "data"
        started = time.perf_counter()
        build(folder, settings, options.partitions, bytes_each, options.message_bytes)
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in files_of(folder) if path.suffix == ".meta")
        segments = sum(path.suffix == ".meta" for path in files_of(folder))
        print(
            f"{options.partitions} partitions, {segments} segments, {size / GIB:.2f} GiB of messages of "
            f"{options.message_bytes} bytes, built in {seconds:.1f} s\n"
        )
        report(folder, settings)


main()
