"""How long a message of a quiet partition waits while another partition of the same consumer always has messages.

    python benchmarks/busy_partition.py [--runs 10] [--scale 1] [--json FILE]

A handler takes a millisecond. Both figures are the longest time from a send to the quiet partition to its handler, over
as many sends as there are runs: beside a partition with more messages than can be handled, and beside an empty one.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from figures import Figure, Report, arguments
from stage import running_broker

from metaq import MetaQ
from metaq.model import Partition

RUNS: Final = 10
BACKLOG: Final = 40_000
HANDLER_S: Final = 0.001
LEAD_S: Final = 0.5
DEADLINE_S: Final = 120.0
BUSY: Final = Partition(0, 0)
QUIET: Final = Partition(0, 1)


def longest_wait_ms(mq: MetaQ, topic: str, sends: int, backlog: int) -> float:
    """Return the longest wait of ``sends`` messages, beside a partition with ``backlog`` messages."""
    producer, waits, came = mq.producer(), list[float](), threading.Event()
    producer.send(topic, b"first", partition=QUIET)
    if backlog:
        producer.send_many(topic, [b"busy"] * backlog, partition=BUSY)
    with mq.consumer(f"group-{topic}", [topic], start="earliest") as consumer:

        def handle(message: Any) -> None:
            time.sleep(HANDLER_S)
            if message.partition == QUIET and message.data != b"first":
                waits.append(time.perf_counter() - float(message.data))
                came.set()

        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        time.sleep(LEAD_S)
        for _ in range(sends):
            came.clear()
            producer.send(topic, b"%.6f" % time.perf_counter(), partition=QUIET)
            if not came.wait(DEADLINE_S):
                waits.append(DEADLINE_S)
        consumer.stop()
        thread.join()
    return max(waits) * 1000


def main(given: Sequence[str] | None = None) -> int:
    """Measure; return the exit status."""
    asked = arguments(__doc__, RUNS).parse_args(given)
    with (
        Report("A quiet partition beside a busy one", asked.json) as report,
        tempfile.TemporaryDirectory() as folder,
        running_broker(Path(folder), 2) as broker,
        MetaQ(str(broker.address)) as mq,
    ):
        alone = longest_wait_ms(mq, "alone", asked.runs, 0)
        beside = longest_wait_ms(mq, "beside", asked.runs, max(1, int(BACKLOG * asked.scale)))
        what = "client, longest wait of a quiet partition beside a busy one"
        report.add(Figure(what, "ms", beside, alone, "beside an empty one", "less"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
