"""How fast writes with ``delivery=exactly_once`` are, beside the same writes at least once.

    python benchmarks/exactly_once.py [--runs 5] [--scale 1] [--json FILE]

Batch writes of messages of two sizes, with one task slot and with two. Both sides write the same rows, made by the JVM,
to the same broker, in turn, in one session; pages of the partitions' files go back to the system meanwhile (see
``pages``). Exactly once, every message is made durable twice: in the journal when its
task has finished, and in its partition when the write is decided. The last figures say how long the driver's part of a
write takes: from the moment when every task has prepared its branches until all messages can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from figures import Figure, Report, arguments, medians, seconds
from pyspark.sql import DataFrame, SparkSession
from spark_bench import TOPIC, Case, broker, spark

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block
from metaq.model import Address, Message, Partition, TopicPartition
from metaq.net.transport import Timeouts
from metaq_spark.backends.metaq.exactly_once.coordinator import Coordinator
from metaq_spark.backends.metaq.exactly_once.plan import plan_transaction
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts, branch_limits
from metaq_spark.backends.metaq.sessions import RetryingSessions
from metaq_spark.columns.blocks import Block
from metaq_spark.columns.fingerprint import of_block
from metaq_spark.options.parsing import parse_sink_options
from metaq_spark.options.table import Use

CASES: Final = (Case(100, 2_000_000), Case(1000, 500_000))
AIM: Final = 0.6
PEER: Final = "at least once"
BLOCK_BYTES: Final = 1 << 20
COMMIT_MIB: Final = (1, 64)
"""Sizes of writes whose commit is measured without Spark."""


def frame_of(session: SparkSession, case: Case, slots: int) -> DataFrame:
    """``case.rows`` payloads, made by the JVM as they are asked for, one task for each slot."""
    value = f"cast(lpad(string(id), {case.payload_bytes}, '0123456789abcdef') as binary) value"
    return session.range(case.rows, numPartitions=slots).selectExpr(value)


def write(frame: DataFrame, address: str, delivery: str) -> None:
    """One batch write of all rows."""
    options = {"brokers": address, "topic": TOPIC, "delivery": delivery}
    frame.write.format("metaq").mode("append").options(**options).save()


def measure_writes(report: Report, address: str, cases: Sequence[Case], runs: int, slots: int) -> None:
    """Add one figure for each case, in rows a second."""
    with spark(slots=slots) as session:
        for case in cases:
            frame = frame_of(session, case, slots)
            ways = [partial(write, frame, address, delivery) for delivery in ("exactly_once", "at_least_once")]
            once_s, least_s = medians(ways, runs)
            name = f"exactly-once write, {case.payload_bytes} B, local[{slots}]"
            rows = case.rows / 1e6
            report.add(Figure(name, "M rows/s", rows / once_s, rows / least_s, PEER, aim=AIM))


def commit_ms(address: str, mebibytes: int) -> Callable[[], float]:
    """A function that writes so much from one task and returns how many milliseconds the driver's part took."""
    options = parse_sink_options({"brokers": address, "topic": TOPIC, "delivery": "exactly_once"}, Use.BATCH_WRITE)
    sessions = RetryingSessions(options, SessionPool(Timeouts(5.0, 60.0)))
    data, count = encode_block([Message(bytes(100))] * (BLOCK_BYTES // 120))
    block = Block(memoryview(data), count, of_block(data))
    broker_address = Address.parse(address)

    def run() -> float:
        plan = plan_transaction(options, False, sessions)
        assert plan.batch is not None
        puts = TransactionalPuts(TaskAttempt(plan.batch, 0, 0), branch_limits(options, plan.timeout_s_max), sessions)
        for number in range(mebibytes):
            puts.put(TopicPartition(TOPIC, Partition(0, number % 2)), broker_address, block)
        branches = puts.finish()
        coordinator, batch = Coordinator(plan.participants, sessions), plan.batch
        took_s = seconds(lambda: coordinator.finish(batch, branches))
        coordinator.end(batch)
        return took_s * 1000

    return run


def measure_commits(report: Report, address: str, runs: int) -> None:
    """Add how long the driver's part takes, for writes of several sizes."""
    for mebibytes in COMMIT_MIB:
        run = commit_ms(address, mebibytes)
        times = sorted(run() for _ in range(runs + 1))
        name = f"exactly-once commit, {mebibytes} MiB of 100 B"
        report.add(Figure(name, "ms", times[len(times) // 2], better="less"))


def main() -> None:
    """Measure and print."""
    given = arguments(__doc__).parse_args()
    cases = [Case(case.payload_bytes, int(case.rows * given.scale)) for case in CASES]
    with broker(for_writes=True) as address, Report("Exactly-once write", given.json) as report:
        for slots in (1, 2):
            measure_writes(report, address, cases, given.runs, slots)
        measure_commits(report, address, given.runs)


if __name__ == "__main__":
    main()
