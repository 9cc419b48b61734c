"""What a streaming query over many partitions costs: while nothing comes, and when one message comes.

    python benchmarks/many_partitions.py [--runs 5] [--scale 1] [--json FILE]

One topic with 4,000 partitions and a message in each, one query that begins at their ends. Idle: CPU seconds a second
of the process that plans, of the JVM and of the broker (beyond what it takes without a query), over ten seconds in
which nothing happens; the limit is 0.05 of a core for all of them. Then one message is put, the trigger with its row is
waited for, and so on ``--runs`` times: the median of Spark's own ``triggerExecution`` beside a limit of 0.3 s, and
beside the same query over one partition. ``--scale`` multiplies the number of partitions. Needs Linux.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker_process import RunningBroker, running_broker
from figures import Figure, Report, arguments
from processes import below, running
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_bench import TOPIC, spark

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.session import Session
from metaq.model import Address, Message

PARTITIONS = 4000
IDLE_S = 10.0
SETTLE_S = 3.0
"""Between the start of a query, or a trigger, and what is measured."""

IDLE_LIMIT_CORES = 0.05
TRIGGER_LIMIT_S = 0.3
DEADLINE_S = 60.0


def put(address: Address, indices: Sequence[int]) -> None:
    """A message into each partition."""
    session = Session.connect(address)
    writer = BatchWriter(session, TOPIC)
    block = encode_block([Message(bytes(100))])
    for index in indices:
        writer.write(index, *block)
    writer.flush()
    session.close()


@contextmanager
def streaming(session: SparkSession, broker: RunningBroker) -> Iterator[StreamingQuery]:
    """A query that has been started and has found nothing to do."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as checkpoint:
        rows = session.readStream.format("metaq").option("brokers", str(broker.address)).option("subscribe", TOPIC)
        query = rows.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        try:
            yield query
        finally:
            query.stop()


def idle_cores(broker: RunningBroker) -> dict[str, float]:
    """CPU seconds a second of each kind of process while nothing happens."""

    def used() -> dict[str, float]:
        found = {"planning": 0.0, "JVM": 0.0, "broker": 0.0}
        for stat in below(os.getpid(), running()):
            kind = "broker" if stat.pid == broker.pid else "JVM" if stat.name == "java" else "planning"
            found[kind] += stat.cpu_s
        return found

    before, start = used(), time.perf_counter()
    time.sleep(IDLE_S)
    after, lasted = used(), time.perf_counter() - start
    return {kind: (after[kind] - before[kind]) / lasted for kind in after}


def triggers_s(query: StreamingQuery, broker: RunningBroker, count: int, runs: int) -> list[float]:
    """How long Spark says each trigger took that read one new message."""
    took_s = []
    for run in range(runs + 1):  # the first is not counted
        known = {each.batchId for each in query.recentProgress if each.numInputRows}
        put(broker.address, [run * 7919 % count])
        end = time.monotonic() + DEADLINE_S
        while not (new := [p for p in query.recentProgress if p.numInputRows and p.batchId not in known]):
            if time.monotonic() > end:
                raise SystemExit("the message did not reach the query")
            time.sleep(0.05)
        took_s.append(new[0].durationMs["triggerExecution"] / 1000)
        time.sleep(0.5)
    return took_s[1:]


def measure(session: SparkSession, count: int, runs: int) -> tuple[dict[str, float], float]:
    """Idle cores by kind of process, and the median trigger in seconds, with ``count`` partitions."""
    with (
        tempfile.TemporaryDirectory(prefix="metaq-bench-") as folder,
        running_broker(Path(folder) / "broker", count) as broker,
    ):
        put(broker.address, range(count))
        time.sleep(SETTLE_S)
        alone = idle_cores(broker)["broker"]
        with streaming(session, broker) as query:
            time.sleep(SETTLE_S)
            cores = idle_cores(broker)
            cores["broker"] = max(0.0, cores["broker"] - alone)
            return cores, statistics.median(triggers_s(query, broker, count, runs))


def main(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if one is over its limit."""
    options = arguments(__doc__).parse_args(given)
    count = max(1, int(PARTITIONS * options.scale))
    with Report("A stream over many partitions", options.json) as report, spark(unix_socket=False) as session:
        _, single_s = measure(session, 1, options.runs)
        cores, trigger_s = measure(session, count, options.runs)
        name = f"stream over {count:,} partitions"
        idle = sum(cores.values())
        report.add(Figure(f"{name}, idle", "cores", idle, IDLE_LIMIT_CORES, "limit", "less", 1.0))
        for kind, used in cores.items():
            report.add(Figure(f"{name}, idle, {kind}", "cores", used, better="less"))
        report.add(Figure(f"{name}, trigger with a row", "s", trigger_s, TRIGGER_LIMIT_S, "limit", "less", 1.0))
        one = f"{name}, trigger with a row beside one partition"
        report.add(Figure(one, "s", trigger_s, single_s, "one partition", better="less"))
    return int(any(figure.met is False for figure in report.figures))


if __name__ == "__main__":
    sys.exit(main())
