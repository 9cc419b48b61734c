"""What a broker needs: its CPU seconds per GB and per million messages, its memory, bytes on the disk for each message.

    python benchmarks/sizing.py [--seconds 3] [--json FILE]

For bodies of 100 B, 1 KB and 10 KB, each way in turn works for ``--seconds``, after three that are not counted:

* **one by one**: ten producers of the Python client, each waits for an answer before it sends the next message;
* **blocks** of 256 KB, as the sink and background sends put them, two under way at a time;
* **read**: ranges of 1 MiB, as the source and consumers fetch them.

CPU is user and system time of the broker process, from ``/proc``: it depends on the processor, and hardly on what else
runs. Every message is acknowledged after fsync. The last column says how many MB/s one core carries, if it does nothing
else. Needs Linux. docs/deploy.md, "Sizing", has a run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from machine import machine, peak_bytes, running
from stage import RunningBroker, running_broker

from metaq import MetaQ
from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.model import Message

BODIES: Final = (100, 1_000, 10_000)
PRODUCERS: Final = 10
BLOCK_BYTES: Final = 256 << 10
READ_BYTES: Final = 1 << 20
WARM_UP_S: Final = 3.0


@dataclass(frozen=True)
class Cost:
    """What a way costs: ``cpu_s`` of the broker for ``messages`` of ``body_bytes`` each in ``seconds``."""

    way: str
    body_bytes: int
    messages: int
    seconds: float
    cpu_s: float

    @property
    def gigabytes(self) -> float:
        return self.messages * self.body_bytes / 1e9

    def row(self) -> str:
        megabytes_per_core = self.gigabytes * 1000 / self.cpu_s if self.cpu_s else float("inf")
        cells = (
            f"{self.way}, {self.body_bytes:,} B",
            f"{self.messages / self.seconds:,.0f}",
            f"{self.cpu_s / self.messages * 1e6:,.1f}",
            f"{self.cpu_s / self.gigabytes:,.1f}",
            f"{megabytes_per_core:,.0f}",
        )
        return f"| {' | '.join(cells)} |"


Step = Callable[[], int]
"""Does some work and returns how many messages that were."""


def worked(way: str, body_bytes: int, pid: int, steps: Sequence[Step], seconds: float) -> Cost:
    """Run ``steps``, each again and again in a thread of its own, and return what the counted time cost."""
    counts, stopping = [0] * len(steps), threading.Event()

    def run(index: int) -> None:
        while not stopping.is_set():
            counts[index] += steps[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(steps))]
    for thread in threads:
        thread.start()
    time.sleep(WARM_UP_S)
    began, before, cpu_before = time.monotonic(), sum(counts), running()[pid].cpu_s
    time.sleep(seconds)
    took, messages, cpu_s = time.monotonic() - began, sum(counts) - before, running()[pid].cpu_s - cpu_before
    stopping.set()
    for thread in threads:
        thread.join()
    return Cost(way, body_bytes, messages, took, cpu_s)


def one_by_one(broker: RunningBroker, body_bytes: int, seconds: float) -> Cost:
    body = b"s" * body_bytes
    with MetaQ(str(broker.address)) as mq:
        producers = [mq.producer() for _ in range(PRODUCERS)]

        def step(index: int) -> Step:
            def send() -> int:
                producers[index].send(f"single-{body_bytes}", body)
                return 1

            return send

        return worked("one by one", body_bytes, broker.pid, [step(index) for index in range(PRODUCERS)], seconds)


def blocks(broker: RunningBroker, body_bytes: int, seconds: float) -> Cost:
    topic = topic_of_blocks(body_bytes)
    block, count = encode_block([Message(b"b" * body_bytes)] * max(1, BLOCK_BYTES // (body_bytes + 20)))

    def step(session: Session, partition: int) -> Step:
        def send() -> int:
            put_batch(session, topic, partition, block, count)
            return count

        return send

    with shared_pool().lease(broker.address) as one, shared_pool().lease(broker.address) as two:
        return worked("blocks", body_bytes, broker.pid, [step(one, 0), step(two, 1)], seconds)


def reads(broker: RunningBroker, body_bytes: int, seconds: float) -> Cost:
    topic, frame_bytes = topic_of_blocks(body_bytes), len(encode_block([Message(b"b" * body_bytes)])[0])
    offset = 0

    with shared_pool().lease(broker.address) as session:

        def read() -> int:
            nonlocal offset
            run = fetch(session, topic, 0, offset, READ_BYTES)
            if not isinstance(run, Run):
                offset = 0  # from the start again
                return 0
            before, offset = offset, run.end
            return run.end // frame_bytes - before // frame_bytes

        return worked("read", body_bytes, broker.pid, [read], seconds)


def topic_of_blocks(body_bytes: int) -> str:
    return f"blocks-{body_bytes}"


def disk_bytes(folder: Path) -> Iterator[tuple[int, float]]:
    """Yield each body's size, and the bytes that a message of it takes on the disk beyond its body."""
    for body_bytes in BODIES:
        files = [path for path in (folder / "data").glob(f"{topic_of_blocks(body_bytes)}-*/*") if path.is_file()]
        stored = sum(path.stat().st_size for path in files)
        frames = sum(path.stat().st_size for path in files if ".meta" in path.name) // (body_bytes + 20)
        yield body_bytes, stored / frames - body_bytes if frames else 0.0


@contextmanager
def measured_broker() -> Iterator[tuple[RunningBroker, Path]]:
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as name, running_broker(Path(name), 2) as broker:
        yield broker, Path(name)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="counted time of each way; default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args(words)
    costs = []
    with measured_broker() as (broker, folder):
        idle = running()[broker.pid].cpu_s, peak_bytes(broker.pid)
        for body_bytes in BODIES:
            costs += [way(broker, body_bytes, options.seconds) for way in (one_by_one, blocks, reads)]
        peak, overheads = peak_bytes(broker.pid), dict(disk_bytes(folder))
    print("| | messages/s | CPU s/million | CPU s/GB | MB/s a core |\n|---|---|---|---|---|")
    print("\n".join(cost.row() for cost in costs))
    print(f"\nMemory of the broker: {idle[1] / 2**20:.0f} MiB idle, {peak / 2**20:.0f} MiB at the peak.")
    beyond = ", ".join(f"{extra:.1f} B of {body:,} B" for body, extra in overheads.items())
    print(f"On the disk beyond each message's body: {beyond}.")
    if options.json:
        content = {"machine": machine(), "costs": [asdict(cost) for cost in costs], "peak_bytes": peak}
        options.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
