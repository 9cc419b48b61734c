"""The demo behind ``make cluster-demo``: a whole cluster on this machine, and a broker that is killed meanwhile.

    ZooKeeper ── two pairs of brokers ── topic "orders" ─> spark-submit on two workers ─> topic "checked"

Half of the messages are sent over MetaQ's protocol, half over RocketMQ's, alternately to the same partitions.

While the pipeline runs, the master of a pair is killed. The other member is elected, and readers, writers and the
transactions of the exactly-once sink go on with it. The killed broker is started again, as systemd would do, and copies
what it has missed. In the end every message must be in the target once, unchanged, and both members of each pair must
have the same bytes. Everything listens on 127.0.0.1 and is stopped at the end, also when the demo is interrupted or
fails. Exit status: 0 if every message arrived once, 1 if not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pyspark
from cluster_demo_messages import STAMP_BYTES, Verdict, broker_name, judge, send, stored
from cluster_demo_processes import Process, Processes
from cluster_demo_stage import (
    WORKERS,
    Broker,
    BrokerPair,
    SparkCluster,
    start_name_server,
    start_spark,
    start_zookeeper,
)
from demo_stage import Interrupted, StageFailed, obey_signals, temporary_folder

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.rocketmq.pool import SessionPool as RocketMQPool
from metaq.backends.rocketmq.topics import create_topic
from metaq.client.rocketmq.client import RocketMQ
from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zookeeper import ZooKeeperDirectory
from metaq.errors import MetaqError
from metaq.model import Address, OffsetRange, TopicPartition

SOURCE, TARGET = "orders", "checked"
STREAM = Path(__file__).with_name("cluster_demo_stream.py")
PAIRS, PARTITIONS = 2, 2
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
        headline(f'Streaming "{SOURCE}" to "{TARGET}", exactly once; a master is killed meanwhile')
        pipeline = self._submit(cluster)
        self._wait_for_share(pipeline)
        self._lose_a_master()
        self._see_it_through(pipeline, cluster)
        headline(f'Reading "{TARGET}" back and comparing every message')
        return self._conclude()

    def _start_brokers(self) -> None:
        zookeeper = start_zookeeper(self._processes)
        self._zookeeper = ZooKeeperAddress.parse(zookeeper)
        self._print(f"ZooKeeper: {zookeeper}")
        self._name_server = start_name_server(self._processes)
        self._print(f"name server of RocketMQ's clients: {self._name_server}")
        self._pairs = [
            BrokerPair(self._processes, zookeeper, number, PARTITIONS, self._name_server) for number in range(PAIRS)
        ]
        for pair in self._pairs:
            pair.members[0].wait_for(partial(self._has_master, pair), "a master is elected")
            for member in pair.members:
                self._print(f"{member.name}: {member.address}{self._role(member)}")

    def _has_master(self, pair: BrokerPair) -> bool:
        return pair.broker_id in self._masters()

    def _role(self, member: Broker) -> str:
        return ", elected master" if self._masters().get(member.broker_id) == member.address else ""

    def _masters(self) -> dict[int, Address]:
        """Return broker id -> address of its master, according to ZooKeeper now."""
        return {
            number: broker.master
            for number, broker in TreeCache(self._zookeeper, CONNECT_S).brokers().items()
            if broker.master is not None
        }

    def _send(self) -> None:
        with closing(RocketMQPool()) as pool, RocketMQ(str(self._name_server)) as rocketmq:
            for pair in self._pairs:
                master = pair.at(self._masters()[pair.broker_id])
                create_topic(pool, broker_name(pair.broker_id), master.rocketmq, SOURCE, PARTITIONS)
            self._pairs[-1].members[0].wait_for(self._is_registered, f'the name server knows all queues of "{SOURCE}"')
            producer = rocketmq.producer()
            over_rocketmq = send(self._directory(), self._pool, producer, SOURCE, self._messages)
        self._print(f"{over_rocketmq:,} of them by a producer of RocketMQ's")
        self._sent_bytes = sum(map(len, self._ends(SOURCE).values()))
        self._wait_for_slaves(SOURCE)
        self._print(f"{self._sent_bytes:,} bytes, the same on both members of each pair")

    def _is_registered(self) -> bool:
        with RocketMQ(str(self._name_server)) as rocketmq:  # a new client, without a cached route
            return len(rocketmq.cluster.describe(SOURCE)) == PARTITIONS * len(self._pairs)

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
            return sum(map(len, self._ends(TARGET).values())) / expected

        pipeline.wait_for(lambda: share() > 0, "the first messages come through", PIPELINE_DEADLINE_S)
        self._print("the first messages have come through")
        enough = f"{SHARE_BEFORE_KILL:.0%} of the messages"
        pipeline.wait_for(lambda: share() >= SHARE_BEFORE_KILL, f"{enough} come through", PIPELINE_DEADLINE_S)
        self._print(f"{enough} have come through")

    def _lose_a_master(self) -> None:
        """Kill a master, wait until the other member is elected, and start the killed one again."""
        pair = self._pairs[0]
        master = pair.at(self._masters()[pair.broker_id])
        other = pair.other(master)
        master.kill()
        self._print(f"the master of {pair.name} is killed (SIGKILL)")
        other.wait_for(lambda: self._masters().get(pair.broker_id) == other.address, "it is elected")
        self._print("the other member is elected, without help")
        master.start_again()
        self._print(f"the killed one runs again, at {master.address}")

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
        self._print(
            f"sent {self._messages:,}, received {verdict.received:,}; both members of each pair have the same bytes"
        )
        print(f"\n{sentence(verdict)}")
        return 0 if verdict.good else 1

    def _directory(self) -> ZooKeeperDirectory:
        """Return the cluster according to ZooKeeper now."""
        return ZooKeeperDirectory(TreeCache(self._zookeeper, CONNECT_S), self._pool)

    def _ends(self, topic: str) -> dict[TopicPartition, OffsetRange]:
        return self._directory().ends([topic])

    def _wait_for_slaves(self, topic: str) -> None:
        for pair in self._pairs:
            pair.members[0].wait_for(partial(pair.are_equal, topic), f'both members have all of "{topic}"')

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
