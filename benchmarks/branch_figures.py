"""What a user sees of the branches that exist for speed: one figure, in a process of its own. ``branches.py`` runs it.

python benchmarks/branch_figures.py FIGURE METAQ_ADDRESS ROCKETMQ_ADDRESS ROWS [RELEASE]

It prints a rate: messages, rows or micro-batches a second. ``RELEASE`` is the release of RocketMQ's own client.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TOPIC: Final = "branches"
BYTES: Final = 100
BATCH: Final = 100
MICRO_BATCH_ROWS: Final = 1000
WARM_UP_BATCHES: Final = 3
TOPIC_SETTINGS: Final = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}


@dataclass(frozen=True)
class Served:
    """Where the broker serves both protocols, and the release of RocketMQ's client, if there is one."""

    metaq: str
    rocketmq: str
    release: str = ""


Measure = Callable[[Served, int], float]


@dataclass(frozen=True)
class UsersFigure:
    """``rows`` at scale 1; ``partitions`` of each topic; ``measure`` returns a rate."""

    rows: int
    measure: Measure
    partitions: int = 2
    needs_release: bool = False


# ---- clients


def one_by_one(served: Served, rows: int) -> float:
    """Durable sends of a client that waits for each."""
    from metaq import MetaQ

    with MetaQ(served.metaq) as queue:
        producer, body = queue.producer(), bytes(BYTES)
        for _ in range(100):
            producer.send(TOPIC, body)
        began = time.perf_counter()
        for _ in range(rows):
            producer.send(TOPIC, body)
        return rows / (time.perf_counter() - began)


def many_clients(connections: int, *, is_rocketmq: bool) -> Measure:
    """Durable sends of so many connections, each of which waits for its answer."""

    def measure(served: Served, rows: int) -> float:
        from fairness import SENT, STORED, put, send
        from greedy_clients import Greedy, greedy_clients

        request, mark = (send(TOPIC), SENT) if is_rocketmq else (put(TOPIC), STORED)
        port = int((served.rocketmq if is_rocketmq else served.metaq).rpartition(":")[2])
        seconds, answered = rows / 1000, [0]
        core = min(os.sched_getaffinity(0))
        with greedy_clients(Greedy(port, request, connections, 1, mark), core, []):
            time.sleep(0.5)
        with greedy_clients(Greedy(port, request, connections, 1, mark), core, answered):
            time.sleep(seconds)
        return sum(answered) / seconds

    return measure


def submitted(served: Served, rows: int) -> float:
    """Messages with a future each."""
    from client_work import Work, metaq_produce

    metaq_produce(work := Work(served.metaq, TOPIC, rows, BYTES))
    return rows / work.times["wall_s"]


def consumed(served: Served, rows: int) -> float:
    """Messages that a consumer iterates over."""
    from client_work import Work, metaq_consume, metaq_produce

    metaq_produce(work := Work(served.metaq, TOPIC, rows, BYTES))
    metaq_consume(work)
    return rows / work.times["wall_s"]


# ---- RocketMQ's own client


def java(does: str) -> Measure:
    """What RocketMQ's Java client gets: single sends of 1 or 64 threads, batches, or pulls."""

    def measure(served: Served, rows: int) -> float:
        from peers.rocketmq.ask import ask
        from peers.rocketmq.jars import release
        from peers.rocketmq.programs import Programs
        from peers.rocketmq.servers import UPDATE_TOPIC

        programs = Programs(release(served.release), served.rocketmq, deadline_s=300)
        ask(served.rocketmq, UPDATE_TOPIC, TOPIC_SETTINGS).checked()
        if does.startswith("sends"):
            rates = programs.send_singles(TOPIC, rows, int(does.split()[1]), runs=3, size=BYTES)
        elif does == "batches":
            rates = programs.send_rates(TOPIC, rows, runs=3, batch=BATCH, size=BYTES)
        else:
            programs.write(TOPIC, rows, size=BYTES, batch=500)
            rates = programs.pull_rates(TOPIC, runs=3)
        return max(each.per_s for each in rates[1:])

    return measure


# ---- Spark


def spark(form: str, does: str, message_bytes: int = BYTES) -> Measure:
    """A batch write, or a batch read of what was written, with one task slot; the second of two runs."""

    def measure(served: Served, rows: int) -> float:
        from stage import spark as spark_session

        with spark_session(slots=1) as session:
            value = f"cast(lpad(string(id), {message_bytes}, '0123456789abcdef') as binary) value"
            frame = session.range(rows, numPartitions=2).selectExpr(value)
            seconds = 0.0
            for _ in range(2 if does == "write" else 1):
                began = time.perf_counter()
                frame.write.format(form).mode("append").options(**_written(form, served)).save()
                seconds = time.perf_counter() - began
            for _ in range(2 if does == "read" else 0):
                began = time.perf_counter()
                stored = session.read.format(form).options(**_read(form, served)).load()
                stored.write.format("noop").mode("overwrite").save()
                seconds = time.perf_counter() - began
            return rows / seconds

    return measure


def micro_batches(form: str) -> Measure:
    """Micro-batches of 1,000 rows over all partitions, to a sink that drops them: how many a second."""

    def measure(served: Served, rows: int) -> float:
        from stage import spark as spark_session

        with spark_session(slots=2) as session, tempfile.TemporaryDirectory(prefix="branches-") as folder:
            session.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
            total = MICRO_BATCH_ROWS * (rows + WARM_UP_BATCHES + 2)
            value = f"cast(lpad(string(id), {BYTES}, '0') as binary) value"
            frame = session.range(total, numPartitions=1).selectExpr(value, "int(id % 50) partition")
            frame.write.format("metaq").mode("append").options(brokers=served.metaq, topic=TOPIC).save()
            stream = session.readStream.format(form).options(**_read(form, served), startingOffsets="earliest")
            stream = stream.option("maxOffsetsPerTrigger", MICRO_BATCH_ROWS)
            writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(Path(folder) / "0"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            if (failure := query.exception()) is not None:
                raise failure
            full = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
            return 1000 / statistics.median(full[WARM_UP_BATCHES:])

    return measure


def _written(form: str, served: Served) -> Mapping[str, str]:
    server = {"metaq": {"brokers": served.metaq}, "rocketmq": {"nameServers": served.rocketmq}}[form]
    return {**server, "topic": TOPIC}


def _read(form: str, served: Served) -> Mapping[str, str]:
    server = {"metaq": {"brokers": served.metaq}, "rocketmq": {"nameServers": served.rocketmq}}[form]
    return {**server, "subscribe": TOPIC}


FIGURES: Final = {
    "send": UsersFigure(1500, one_by_one),
    "50 clients": UsersFigure(3000, many_clients(50, is_rocketmq=False)),
    "submit": UsersFigure(200_000, submitted),
    "consume": UsersFigure(400_000, consumed),
    "spark write": UsersFigure(2_000_000, spark("metaq", "write")),
    "spark write, 1 KB": UsersFigure(400_000, spark("metaq", "write", 1000)),
    "spark read": UsersFigure(4_000_000, spark("metaq", "read")),
    "spark read, 1 KB": UsersFigure(600_000, spark("metaq", "read", 1000)),
    "rocketmq spark write": UsersFigure(1_000_000, spark("rocketmq", "write")),
    "rocketmq spark read": UsersFigure(2_000_000, spark("rocketmq", "read")),
    "micro-batches": UsersFigure(20, micro_batches("metaq"), partitions=50),
    "rocketmq micro-batches": UsersFigure(20, micro_batches("rocketmq"), partitions=50),
    "rocketmq send": UsersFigure(1500, java("sends 1"), needs_release=True),
    "rocketmq 64 sends": UsersFigure(15_000, java("sends 64"), needs_release=True),
    "rocketmq batches": UsersFigure(150_000, java("batches"), needs_release=True),
    "rocketmq pulls": UsersFigure(150_000, java("pulls"), needs_release=True),
}


def main() -> None:
    """Measure what the command line names."""
    name, metaq, rocketmq, rows, *release = sys.argv[1:]
    print(FIGURES[name].measure(Served(metaq, rocketmq, *release), int(rows)))


if __name__ == "__main__":
    main()
