"""How much memory a task of a read takes, and that it does not grow with the bytes that it reads.

    python benchmarks/read_memory.py [--runs 3] [--scale 1] [--json FILE] [--gib 1]

Fills one partition of a real broker, then reads it in a process that does what a Python worker of Spark does for one
task, batch by batch. The peak of its resident memory at the end stands beside that behind the first GiB, or behind the
first quarter if there is less than four GiB: the ratio should be close to 1 whatever is read.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from figures import Figure, Report, arguments
from spark_bench import TOPIC, broker

from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message, OffsetRange, Partition, TopicPartition

GIB = 1 << 30
PAYLOAD_BYTES = 1000
RUNS = 3
AIM = 1.1
BLOCK_MESSAGES = 4000
"""Messages of one put, about 4 MB."""


def fill(address: Address, size: int) -> int:
    """Put at least ``size`` bytes of messages into partition 0; returns its end."""
    block, count = encode_block(Message(os.urandom(PAYLOAD_BYTES)) for _ in range(BLOCK_MESSAGES))
    session = Session.connect(address)
    end = 0
    while end < size:
        end = put_batch(session, TOPIC, 0, block, count).offset + len(block)
    session.close()
    return end


def peak_bytes() -> int:
    """The most memory that this process has had at a time. (getrusage would count the parent's as well.)"""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) << 10


def read(address: Address, first: int, end: int) -> None:
    """The task: reads everything, and prints its peak before, after ``first`` bytes, at the end, and the seconds."""
    from metaq_spark.options.parsing import parse_source_options
    from metaq_spark.options.table import Use
    from metaq_spark.source.partition_reader import RangePartition, read_partition

    options = parse_source_options({"brokers": str(address), "subscribe": TOPIC}, Use.BATCH_READ)
    source = TopicPartition(TOPIC, Partition(0, 0))
    before, began = peak_bytes(), time.perf_counter()
    early = 0
    for batch in read_partition(RangePartition(source, address, OffsetRange(0, end)), options):
        if not early and batch["offset"][-1].as_py() >= first:
            early = peak_bytes()
    print(before, early, peak_bytes(), time.perf_counter() - began)


def measure(address: Address, first: int, end: int) -> list[float]:
    """What ``read`` prints, from a process of its own."""
    command = [sys.executable, __file__, "--task", str(address), str(first), str(end)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(figure) for figure in done.stdout.split()]


def main() -> None:
    parser = arguments(__doc__, RUNS)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB to read at scale 1 (default 1)")
    parser.add_argument("--task", nargs=3, metavar=("BROKER", "FIRST", "END"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        read(Address.parse(given.task[0]), *map(int, given.task[1:]))
        return
    with broker() as text, Report("Memory of a task that reads", given.json) as report:
        address = Address.parse(text)
        end = fill(address, int(given.gib * given.scale * GIB))
        first = min(GIB, end // 4)
        runs = [measure(address, first, end) for _ in range(given.runs)]
        before, early, peak, seconds = (statistics.median(each) for each in zip(*runs, strict=True))
        report.add(Figure("task's memory: before the first row", "MiB", before / 2**20, better="less"))
        early_name = f"after {first / GIB:.2g} of {end / GIB:.2g} GiB"
        report.add(Figure("task's memory: peak", "MiB", peak / 2**20, early / 2**20, early_name, "less", AIM))
        report.add(Figure("task's speed meanwhile", "MB/s", end / 1e6 / seconds))


if __name__ == "__main__":
    main()
