"""What the log adds to a write: ``PartitionLog.append`` beside a bare ``os.write`` of the same bytes; opening a log.

    python benchmarks/log_append.py [--megabytes 64] [--frame-bytes 120] [--rounds 5] [--folder DIR]

Nothing is synced here; the disk's share is what ``group commit`` hides. Each row writes the same frames in appends of
that many frames. Rounds of the two take turns in one process, the best of each counts. "ratio" is log / bare. The
second table reads the log back: what opening costs per GB with and without an index, beside a bare CRC-32 over the
file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from metaq_broker.clock import Clock
from metaq_broker.files import Files
from metaq_broker.log.partition_log import LogSettings, PartitionLog, Verify

from metaq.message_id import IdWorker
from metaq.wire.text.frames import encode_frame

BATCHES = (1, 10, 100, 500, 2000)
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


def best(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Return the least of each measure; they take turns."""
    results = [[measure() for measure in measures] for _ in range(rounds)]
    return [min(column) for column in zip(*results, strict=True)]


def appending(folder: Path, frames: list[bytes], rounds: int) -> None:
    print(f"{'frames an append':>16} {'bare ns/frame':>14} {'log ns/frame':>13} {'ratio':>6}")
    for size in BATCHES:
        part = frames if size >= 100 else frames[: len(frames) // 8]
        batches = [part[at : at + size] for at in range(0, len(part), size)]
        floor, ours = best(rounds, partial(bare, folder, batches), partial(logged, folder, batches))
        print(f"{size:>16} {floor / len(part) * 1e9:>14.0f} {ours / len(part) * 1e9:>13.0f} {ours / floor:>6.2f}")


def opening(folder: Path, frames: list[bytes], rounds: int) -> None:
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

    rows = {
        "bare read and CRC-32": summed,
        "after a clean stop": lambda: opened("trust", True),
        "after a crash": lambda: opened("tail", True),
        "without an index": lambda: opened("tail", False),
    }
    results = best(max(1, rounds // 2), *rows.values())
    print(f"\n{'opening':>22} {'s/GB':>7} {'ratio':>8}")
    for name, seconds in zip(rows, results, strict=True):
        print(f"{name:>22} {seconds / size * GIGABYTE:>7.3f} {seconds / results[0]:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--frame-bytes", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    ids = IdWorker(0)
    now_ms = Clock().now_ms()
    body = bytes(options.frame_bytes - 20)
    count = options.megabytes * 1_000_000 // options.frame_bytes
    frames = [encode_frame(ids.next_id(now_ms), 0, body) for _ in range(count)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        appending(Path(folder), frames, options.rounds)
        opening(Path(folder), frames, options.rounds)


main()
