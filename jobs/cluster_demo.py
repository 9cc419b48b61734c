"""The demo behind ``make cluster-demo``: a whole cluster on this machine, and a broker that is killed meanwhile.

    ZooKeeper ── two brokers, each with a slave ── topic "orders" ─> spark-submit on two workers ─> topic "checked"

Half of the messages are sent over MetaQ's protocol, half over RocketMQ's, alternately to the same partitions.

While the pipeline runs, a broker is killed. Readers use its slave; transactions of the exactly-once sink wait, because
only a master decides them. So the broker is started again, as systemd would do, and in the end every message must be in
the target once, unchanged. Everything listens on 127.0.0.1 and is stopped at the end, also when the demo is interrupted
or fails. Exit status: 0 if every message arrived once, 1 if not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import closing
from pathlib import Path

import pyspark
from cluster_demo_messages import STAMP_BYTES, Verdict, judge, send, stored
from cluster_demo_processes import Process, Processes
from cluster_demo_stage import WORKERS, Broker, SparkCluster, start_spark, start_zookeeper
from demo_stage import Interrupted, StageFailed, obey_signals, temporary_folder

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.rocketmq.pool import SessionPool as RocketMQPool
from metaq.backends.rocketmq.topics import create_topic
from metaq.client.rocketmq.client import RocketMQ
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import MetaqError
from metaq.model import OffsetRange, TopicPartition

SOURCE, TARGET = "orders", "checked"
STREAM = Path(__file__).with_name("cluster_demo_stream.py")
MASTERS, PARTITIONS = 2, 2
MESSAGES, BATCHES = 200_000, 12
SHARE_BEFORE_KILL = 0.3
RUNS_MAX = 4
CONNECT_S = 5.0
PIPELINE_DEADLINE_S = 600.0


def main() -> int:
    messages = parse_arguments().messages
    logging.getLogger().addHandler(logging.NullHandler())  # kazoo logs each lost connection at length
    obey_signals()
    try:
        with temporary_folder() as folder, Processes(folder) as processes:
            return Demo(processes, messages).perform()
    except Interrupted as interrupted:
        print("\nInterrupted. Spark, the brokers and ZooKeeper are stopped.", file=sys.stderr)
        return 128 + interrupted.number
    except (StageFailed, MetaqError) as problem:
        print(f"cluster_demo: {problem}", file=sys.stderr)
        return 1


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run a pipeline on a cluster of this machine and kill a broker.")
    parser.add_argument(
        "--messages", type=count, default=MESSAGES, help=f"how many go through, 1000 or more (default: {MESSAGES})"
    )
    return parser.parse_args(arguments)


def count(text: str) -> int:
    """Parse a number of messages that needs more than one micro-batch, for argparse."""
    if not text.isdecimal() or int(text) < 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 1000 or more")
    return int(text)


class Demo:
    """The steps of the demo; each prints what it does."""

    def __init__(self, processes: Processes, messages: int) -> None:
        self._processes, self._messages = processes, messages
        self._pool = shared_pool()
        self._started_s = time.monotonic()
        self._runs = 0

    def perform(self) -> int:
        """Run all steps; return the exit status."""
        headline("Starting the cluster")
        self._start_brokers()
        cluster = start_spark(self._processes)
        self._print(f"Spark {pyspark.__version__}: {cluster.master} with {WORKERS} workers")
        headline(f'Sending {self._messages:,} messages to the topic "{SOURCE}"')
        self._send()
        headline(f'Streaming "{SOURCE}" to "{TARGET}", exactly once; a broker is killed meanwhile')
        pipeline = self._submit(cluster)
        self._wait_for_share(pipeline)
        self._lose_a_broker()
        self._see_it_through(pipeline, cluster)
        headline(f'Reading "{TARGET}" back and comparing every message')
        return self._conclude()

    def _start_brokers(self) -> None:
        zookeeper = start_zookeeper(self._processes)
        self._zookeeper = ZooKeeperAddress.parse(zookeeper)
        self._print(f"ZooKeeper: {zookeeper}")
        self._masters = [Broker(self._processes, zookeeper, 0, PARTITIONS)]
        for id_ in range(1, MASTERS):
            name_server = self._masters[0].rocketmq
            self._masters.append(Broker(self._processes, zookeeper, id_, PARTITIONS, name_server=name_server))
        self._slaves = [
            Broker(self._processes, zookeeper, master.broker_id, PARTITIONS, master.address) for master in self._masters
        ]
        for broker in [*self._masters, *self._slaves]:
            self._print(f"{broker.name}: {broker.address}")
        self._print(f"name server of RocketMQ's clients: {self._masters[0].rocketmq}")

    def _send(self) -> None:
        with closing(RocketMQPool()) as pool, RocketMQ(str(self._masters[0].rocketmq)) as rocketmq:
            for master in self._masters:
                create_topic(pool, master.name, master.rocketmq, SOURCE, PARTITIONS)
            self._masters[-1].wait_for(self._is_registered, f'the name server knows all queues of "{SOURCE}"')
            producer = rocketmq.producer()
            over_rocketmq = send(self._directory(), self._pool, producer, SOURCE, self._messages)
        self._print(f"{over_rocketmq:,} of them by a producer of RocketMQ's")
        self._sent_bytes = sum(map(len, self._ends(self._masters, SOURCE).values()))
        self._wait_for_slaves(SOURCE)
        self._print(f"{self._sent_bytes:,} bytes, on the brokers' disks and on their slaves'")

    def _is_registered(self) -> bool:
        with RocketMQ(str(self._masters[0].rocketmq)) as rocketmq:  # a new client, without a cached route
            return len(rocketmq.cluster.describe(SOURCE)) == PARTITIONS * len(self._masters)

    def _submit(self, cluster: SparkCluster) -> Process:
        self._runs += 1
        options = {
            "--zookeeper": self._zookeeper,
            "--source": SOURCE,
            "--target": TARGET,
            "--checkpoint": self._processes.folder / "checkpoint",
            "--max-bytes-per-batch": self._sent_bytes // BATCHES,
        }
        self._print(f"spark-submit {STREAM.name}, brokers found in ZooKeeper")
        return cluster.submit(STREAM, [str(part) for option in options.items() for part in option])

    def _wait_for_share(self, pipeline: Process) -> None:
        expected = self._sent_bytes + STAMP_BYTES * self._messages

        def share() -> float:
            return sum(map(len, self._ends(self._masters, TARGET).values())) / expected

        pipeline.wait_for(lambda: share() > 0, "the first messages come through", PIPELINE_DEADLINE_S)
        self._print("the first messages have come through")
        enough = f"{SHARE_BEFORE_KILL:.0%} of the messages"
        pipeline.wait_for(lambda: share() >= SHARE_BEFORE_KILL, f"{enough} come through", PIPELINE_DEADLINE_S)
        self._print(f"{enough} have come through")

    def _lose_a_broker(self) -> None:
        """Kill a master, wait until readers are sent to its slave, and start it again."""
        master, slave = self._masters[0], self._slaves[0]
        master.kill()
        self._print(f"{master.name} is killed (SIGKILL)")
        slave.wait_for(lambda: self._directory().brokers().get(master.broker_id) == slave.address, "readers find it")
        there = sum(1 for _ in stored(self._directory(), self._pool, SOURCE, master.broker_id))
        self._print(f'ZooKeeper names its slave for reading, which has {there:,} messages of "{SOURCE}"')
        master.start_again()
        self._print(f"{master.name} runs again, at {master.address}")

    def _see_it_through(self, pipeline: Process, cluster: SparkCluster) -> None:
        """Wait for the end of the pipeline; one that fails is submitted again, and continues from its checkpoint."""
        while (status := pipeline.wait(PIPELINE_DEADLINE_S)) != 0:
            self._print(f"the pipeline has ended with status {status}: {reason_in(pipeline.said())}")
            if self._runs == RUNS_MAX:
                raise StageFailed(f"the pipeline has failed {RUNS_MAX} times{pipeline.end_of_log()}")
            pipeline = self._submit(cluster)
        self._print("the pipeline has written everything that was there")

    def _conclude(self) -> int:
        self._wait_for_slaves(TARGET)
        verdict = judge(stored(self._directory(), self._pool, TARGET), self._messages)
        self._print(f"sent {self._messages:,}, received {verdict.received:,}; the slaves have the same")
        print(f"\n{sentence(verdict)}")
        return 0 if verdict.good else 1

    def _directory(self) -> ZooKeeperDirectory:
        """Return the cluster according to ZooKeeper now."""
        return ZooKeeperDirectory(TreeCache(self._zookeeper, CONNECT_S), self._pool)

    def _ends(self, brokers: list[Broker], topic: str) -> dict[TopicPartition, OffsetRange]:
        return FixedDirectory([broker.address for broker in brokers], self._pool).ends([topic])

    def _wait_for_slaves(self, topic: str) -> None:
        def is_same() -> bool:
            return self._ends(self._slaves, topic) == self._ends(self._masters, topic)

        self._slaves[0].wait_for(is_same, f'the slaves have all of "{topic}"')

    def _print(self, text: str) -> None:
        print(f"  {time.monotonic() - self._started_s:5.1f} s  {text}", flush=True)


def headline(text: str) -> None:
    print(f"\n{text}", flush=True)


def reason_in(log: str) -> str:
    """Return the last line of Spark's log that names an error."""
    named = [line.strip() for line in log.splitlines() if "Error" in line or "Exception" in line or "Failed" in line]
    return named[-1][:200] if named else "it did not say why"


def sentence(verdict: Verdict) -> str:
    if verdict.good:
        return "Every message came through exactly once, unchanged."
    return f"DIFFERENT: {verdict.missing:,} missing, {verdict.doubled:,} too many, {verdict.wrong:,} changed."


if __name__ == "__main__":
    sys.exit(main())
