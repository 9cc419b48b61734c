"""Measures parts of the client and of the broker in one process without sockets: codec, log, opening of a folder.

python benchmarks/components.py codec [--runs 7] [--scale 1] [--json FILE] python benchmarks/components.py log-append
[--runs 5] [--scale 1] [--json FILE] [--folder DIR] python benchmarks/components.py open-log [--runs 3] [--scale 1]
[--json FILE] [--gib 2] [--partitions 4]
                                         [--segment-mib 256] [--message-bytes 1000] [--folder DIR]
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from figures import Figure, Report, alternating, arguments, medians, run_part
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog, Verify

from metaq.formats.checksum import checksum
from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame, walk
from metaq.formats.message_id import IdWorker
from metaq.protocols.text.commands import Command, Put, Reply, Result, Value
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder
from metaq.protocols.text.encode import encode

# ---- codec

ABOUT_CODEC: Final = """\
How fast the text codec and the frame functions are, in one process and without any I/O.

Every figure is a median over the same prepared bytes; all take turns. Small items are compared with a floor: the least
that pure Python does for such an item (find the line end, split the line, read two numbers, cut out the body). Values
are compared with one plain copy of them. Less is better; the ratio is how many times the floor something costs.
"""

ITEMS = 20_000
VALUE_BYTES = 1 << 20
CODEC_RUNS = 7


def puts(body_bytes: int, sizes: int, items: int) -> list[Put]:
    """Return puts to four partitions, with bodies of ``sizes`` different lengths from ``body_bytes`` on."""
    bodies = [b"x" * (body_bytes + size) for size in range(sizes)]
    sums = [checksum(body) for body in bodies]
    return [Put("orders", n % 4, bodies[n % sizes], 0, n - 2**31, sums[n % sizes]) for n in range(items)]


def stream_of(items: Iterable[Command | Reply], chunk_bytes: int = 64 << 10) -> list[bytes]:
    """Return the encoded items as the chunks that a socket might deliver."""
    stream = b"".join(map(encode, items))
    return [stream[at : at + chunk_bytes] for at in range(0, len(stream), chunk_bytes)]


def decode_commands(chunks: list[bytes]) -> None:
    """Decode as a broker does."""
    decoder = CommandDecoder()
    for chunk in chunks:
        decoder.receive_data(chunk)
        while decoder.next_event(64) is not NEED_DATA:
            pass


def decode_replies(chunks: list[bytes], times: int = 1) -> None:
    for _ in range(times):
        decoder = ReplyDecoder()
        for chunk in chunks:
            decoder.receive_data(chunk)
            while decoder.next_reply() is not NEED_DATA:
                pass


def again(action: Callable[[], object], times: int) -> None:
    for _ in range(times):
        action()


def floor(stream: bytes) -> None:
    """Do what every decoder of puts must do."""
    position = 0
    while (end := stream.find(b"\r\n", position)) >= 0:
        tokens = stream[position:end].split(b" ")
        position = end + 2 + int(tokens[3])
        _ = stream[end + 2 : position], int(tokens[6])


def small_items(report: Report, items: int, runs: int) -> None:
    """Measure microseconds per small item."""
    same = puts(100, 1, items)
    results = [Result(200, f"{n << 40} 3 {n * 120}", n) for n in range(items)]
    run = b"".join(encode_frame(n, 0, put.body) for n, put in enumerate(same))
    ways: dict[str, Callable[[], object]] = {
        "decode put, 100 B": partial(decode_commands, stream_of(same)),
        "decode put, 60..139 B": partial(decode_commands, stream_of(puts(60, 80, items))),
        "decode result": partial(decode_replies, stream_of(results)),
        "encode put, 100 B": lambda: [encode(put) for put in same],
        "encode result": lambda: [encode(result) for result in results],
        "encode frame, 100 B, checksum made": lambda: [encode_frame(1, 0, put.body) for put in same],
        "encode frame, 100 B, checksum known": lambda: [encode_frame(1, 0, put.body, 5) for put in same],
        "walk frames, 100 B, checksum verified": lambda: sum(1 for _ in walk(run)),
    }
    bare = partial(floor, b"".join(map(encode, same)))
    least, *took = (seconds / items * 1e6 for seconds in medians([bare, *ways.values()], runs))
    for name, each in zip(ways, took, strict=True):
        report.add(Figure(f"codec: {name}", "µs", each, least, "split and cut a put of 100 B", "less"))


def large_values(report: Report, times: int, runs: int) -> None:
    """Measure microseconds per value of 1 MiB; ``times`` of them are one run."""
    value = Value(bytes(VALUE_BYTES), 7)
    ways: dict[str, Callable[[], object]] = {
        "decode value of 1 MiB, chunks of 256 KiB": partial(decode_replies, stream_of([value], 256 << 10), times),
        "decode value of 1 MiB, chunks of 16 KiB": partial(decode_replies, stream_of([value], 16 << 10), times),
        "encode value of 1 MiB": partial(again, partial(encode, value), times),
    }
    copy = partial(again, partial(bytearray, value.data), times)
    least, *took = (seconds / times * 1e6 for seconds in medians([copy, *ways.values()], runs))
    for name, each in zip(ways, took, strict=True):
        report.add(Figure(f"codec: {name}", "µs", each, least, "one copy", "less"))


def main_codec(words: Sequence[str] | None = None) -> None:
    given = arguments(ABOUT_CODEC, CODEC_RUNS).parse_args(words)
    with Report("The codec alone", given.json) as report:
        small_items(report, max(100, int(ITEMS * given.scale)), given.runs)
        large_values(report, max(2, int(100 * given.scale)), given.runs)


# ---- log-append

ABOUT_LOG_APPEND: Final = """\
What the log adds to a write: ``PartitionLog.append_blocks`` beside a bare ``os.write`` of the same bytes; its opening.

Nothing is synced here; the disk's share is what group commit hides. Both write the same frames of 120 bytes, in appends
of that many; times are this process's CPU time, which is what the broker's one thread has to give. Then the log is read
back: what opening costs per GB after a crash, with and without an index, beside a bare CRC-32 over the file. Medians of
runs in turn.
"""

BATCHES = (1, 10, 100, 500, 2000)
APPENDED_MEGABYTES = 64
FRAME_BYTES = 120
GIGABYTE = 1e9


def bare(folder: Path, batches: list[list[bytes]]) -> float:
    """Write the batches, joined beforehand, with ``os.write``; return seconds."""
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
    """Append the batches to a log, each as the block that the engine makes of it; return seconds."""
    blocks = list(map(FrameBlock.of, batches))
    log = PartitionLog.open(Files(), Clock(), folder / "bench-0", LogSettings())
    started = time.process_time()
    for block in blocks:
        log.append_blocks([block])
    seconds = time.process_time() - started
    log.close(clean=False)
    shutil.rmtree(folder / "bench-0")
    return seconds


def appending(report: Report, folder: Path, frames: list[bytes], runs: int) -> None:
    """Measure nanoseconds per frame, for appends of one frame and of many."""
    for size in BATCHES:
        part = frames if size >= 100 else frames[: len(frames) // 8]
        batches = [part[at : at + size] for at in range(0, len(part), size)]
        floor, ours = alternating([partial(bare, folder, batches), partial(logged, folder, batches)], runs)
        name = f"log: append, {size} frame{'s' * (size > 1)} at a time"
        report.add(Figure(name, "CPU ns/frame", ours / len(part) * 1e9, floor / len(part) * 1e9, "os.write", "less"))


def opening_after(report: Report, folder: Path, frames: list[bytes], runs: int) -> None:
    """Measure seconds per GB of opening a log. (After a clean stop it is next to nothing for any size.)"""
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
    floor, *times = alternating([summed, *ways.values()], max(1, runs // 2))
    for name, seconds in zip(ways, times, strict=True):
        figures = seconds / size * GIGABYTE, floor / size * GIGABYTE
        report.add(Figure(f"log: open {name}", "CPU s/GB", *figures, "bare read and CRC-32", "less"))


def main_log_append(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_LOG_APPEND)
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    given = parser.parse_args(words)
    ids = IdWorker(0)
    now_ms = Clock().now_ms()
    body = bytes(FRAME_BYTES - 20)
    count = max(max(BATCHES), int(APPENDED_MEGABYTES * 1_000_000 * given.scale) // FRAME_BYTES)
    frames = [encode_frame(ids.next_id(now_ms), 0, body) for _ in range(count)]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, Report("The log alone", given.json) as report:
        appending(report, Path(folder), frames, given.runs)
        opening_after(report, Path(folder), frames, given.runs)


# ---- open-log

ABOUT_OPEN_LOG: Final = """\
How long a data folder takes to open: after a clean stop, after a kill, with everything verified; many partitions.

Builds a folder of ``--gib`` times the scale (with units of about 1 MiB, whose bytes are all alike) and opens it with
``LogStore``, with one thread and with several (``loadMessageStoresInParallel``). "cold": the files are taken out of the
page cache before. "kill": without the mark of a clean stop, as after ``kill -9``. "all verified" is
``verifyAtStart=full``, the same work as ``metaq-broker fsck``. The peer is a bare CRC-32 over the same bytes, cold:
what reading all of it takes. Medians of runs in turn; less is better.
"""

GIB, MIB = 1 << 30, 1 << 20
CLEAN_MARK = "clean-shutdown"
OPEN_RUNS = 3


def open_store(folder: Path, settings: LogSettings, verify: Verify = "tail", threads: int = 1) -> LogStore:
    return LogStore.open(Files(), Clock(), folder, lambda topic: settings, verify=verify, load_threads=threads)


def build(folder: Path, settings: LogSettings, partitions: int, bytes_each: int, message_bytes: int) -> None:
    """Fill every partition with copies of one unit, and stop cleanly."""
    ids = IdWorker(0).reserve(MIB // message_bytes, Clock().now_ms())
    frames = [encode_frame(message_id, 0, bytes(message_bytes - 20)) for message_id in ids]
    block = FrameBlock.of(frames)
    store = open_store(folder, settings)
    for index in range(partitions):
        log = store.get_or_create("bench", index)
        while log.end_offset + len(block) <= bytes_each:
            log.append_blocks([block])
            if log.end_offset - log.readable_end > 256 * MIB:
                log.sync()
        if log.end_offset < bytes_each:
            log.append(frames[: max(1, (bytes_each - log.end_offset) // message_bytes)])
        log.sync()
    store.close()


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def forget_cache(folder: Path) -> None:
    """Remove all files, which are durable, from the page cache."""
    for path in files_of(folder):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def opened(folder: Path, settings: LogSettings, verify: Verify, threads: int, *, clean: bool, cold: bool) -> float:
    """Open the folder once and stop cleanly; return the seconds of the opening."""
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
    """Read files and compute CRC-32 over them, 1 MiB at a time; return seconds."""
    started = time.perf_counter()
    for path in paths:
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while data := file.read(MIB):
                checksum = zlib.crc32(data, checksum)
    return time.perf_counter() - started


def summed_cold(folder: Path) -> float:
    """Measure the peer: a bare CRC-32 over all segments, which are not in the page cache; return seconds."""
    forget_cache(folder)
    return summed(path for path in files_of(folder) if path.suffix == ".meta")


def opening(report: Report, folder: Path, settings: LogSettings, runs: int) -> None:
    """Add one figure for each way to open the folder."""
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
    rounds = [[way() for way in every] for _ in range(runs)]
    floor, *seconds = (statistics.median(times) for times in zip(*rounds, strict=True))
    for name, each in zip(ways, seconds, strict=True):
        report.add(Figure(f"open: {name}", "s", each, floor, "bare CRC-32 of all bytes", "less"))


def main_open_log(words: Sequence[str] | None = None) -> None:
    parser = arguments(ABOUT_OPEN_LOG, OPEN_RUNS)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--segment-mib", type=int, default=256)
    parser.add_argument("--message-bytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    given = parser.parse_args(words)
    settings = LogSettings(segment_bytes_max=given.segment_mib * MIB)
    bytes_each = int(given.gib * given.scale * GIB) // given.partitions
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name) / "data"
        build(folder, settings, given.partitions, bytes_each, given.message_bytes)
        size = sum(path.stat().st_size for path in files_of(folder) if path.suffix == ".meta")
        title = f"Opening {size / GIB:.2f} GiB in {given.partitions} partitions, messages of {given.message_bytes} B"
        with Report(title, given.json) as report:
            opening(report, folder, settings, given.runs)


PARTS: Final[Mapping[str, Callable[[Sequence[str]], int | None]]] = {
    "codec": main_codec,
    "log-append": main_log_append,
    "open-log": main_open_log,
}

if __name__ == "__main__":
    sys.exit(run_part(PARTS))
