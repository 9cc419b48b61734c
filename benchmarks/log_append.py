"""What the log adds to a write: ``PartitionLog.append`` beside a bare ``os.write`` of the same bytes; opening a log.

    python benchmarks/log_append.py [--runs 5] [--scale 1] [--json FILE] [--folder DIR]

Nothing is synced here; the disk's share is what group commit hides. Both write the same frames of 120 bytes, in appends
of that many; times are this process's CPU time, which is what the broker's one thread has to give. Then the log is read
back: what opening costs per GB after a crash, with and without an index, beside a bare CRC-32 over the file. Medians of
runs in turn.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path

from figures import Figure, Report, arguments, in_turn
from metaq_broker.clock import Clock
from metaq_broker.storage.files import Files
from metaq_broker.storage.partition_log import LogSettings, PartitionLog, Verify

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker

BATCHES = (1, 10, 100, 500, 2000)
MEGABYTES = 64
FRAME_BYTES = 120
GIGABYTE = 1e9


def bare(folder: Path, batches: list[list[bytes]]) -> float:
    """Write the batches, joined beforehand, with ``os.write``; seconds."""
    blocks = [b"".join(batch) for batch in batches]
    fd = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    started = time.process_time()
    for block in blocks:
        os.write(fd, block)
    seconds = time.process_time() - started
    os.close(fd)
    (folder / "bare").unlink()
    return seconds


def logged(folder: Path, batches: list[list[bytes]]) -> float:
    """Append the batches to a log; seconds."""
    log = PartitionLog.open(Files(), Clock(), folder / "bench-0", LogSettings())
    started = time.process_time()
    for batch in batches:
        log.append(batch)
    seconds = time.process_time() - started
    log.close(clean=False)
    shutil.rmtree(folder / "bench-0")
    return seconds


def appending(report: Report, folder: Path, frames: list[bytes], runs: int) -> None:
    """Nanoseconds a frame, for appends of one frame and of many."""
    for size in BATCHES:
        part = frames if size >= 100 else frames[: len(frames) // 8]
        batches = [part[at : at + size] for at in range(0, len(part), size)]
        floor, ours = in_turn([partial(bare, folder, batches), partial(logged, folder, batches)], runs)
        name = f"log: append, {size} frame{'s' * (size > 1)} at a time"
        report.add(Figure(name, "CPU ns/frame", ours / len(part) * 1e9, floor / len(part) * 1e9, "os.write", "less"))


def opening(report: Report, folder: Path, frames: list[bytes], runs: int) -> None:
    """Seconds per GB of opening a log. (After a clean stop it is next to nothing, whatever its size.)"""
    log = PartitionLog.open(Files(), Clock(), folder / "bench-0", LogSettings())
    for at in range(0, len(frames), 500):
        log.append(frames[at : at + 500])
    log.close()
    path = folder / "bench-0" / f"{0:020d}.meta"
    size = path.stat().st_size
    index = path.with_suffix(".index")
    kept = index.read_bytes()

    def opened(verify: Verify, indexed: bool) -> float:
        index.write_bytes(kept) if indexed else index.unlink(missing_ok=True)
        started = time.process_time()
        PartitionLog.open(Files(), Clock(), folder / "bench-0", LogSettings(), verify=verify).close(clean=False)
        return time.process_time() - started

    def summed() -> float:
        started = time.process_time()
        zlib.crc32(path.read_bytes())
        return time.process_time() - started

    ways = {
        "after a crash": partial(opened, "tail", True),
        "without an index": partial(opened, "tail", False),
    }
    floor, *times = in_turn([summed, *ways.values()], max(1, runs // 2))
    for name, seconds in zip(ways, times, strict=True):
        figures = seconds / size * GIGABYTE, floor / size * GIGABYTE
        report.add(Figure(f"log: open {name}", "CPU s/GB", *figures, "bare read and CRC-32", "less"))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    given = parser.parse_args()
    ids = IdWorker(0)
    now_ms = Clock().now_ms()
    body = bytes(FRAME_BYTES - 20)
    count = max(max(BATCHES), int(MEGABYTES * 1_000_000 * given.scale) // FRAME_BYTES)
    frames = [encode_frame(ids.next_id(now_ms), 0, body) for _ in range(count)]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, Report("The log alone", given.json) as report:
        appending(report, Path(folder), frames, given.runs)
        opening(report, Path(folder), frames, given.runs)


if __name__ == "__main__":
    main()
