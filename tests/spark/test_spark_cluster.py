"""Streaming queries over ``zookeeper`` while the cluster behind them changes: idle, lost and new partitions."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, system_section, wait_until
from fix_zookeeper import SESSION_S, ZooKeeperRoot, ZooKeeperServer
from pyarrow.parquet import read_table
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.model import Message

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

TOPIC = "orders"
FRAME_BYTES = 22
"""Size of a message of two bytes."""
SEEN_WITHIN_S = 60.0


class ChangingCluster:
    """Brokers of one topic that register in ZooKeeper. After each start a broker is at another port."""

    def __init__(self, zookeeper: ZooKeeperRoot, folder: Path, start_broker: StartBroker) -> None:
        self.zookeeper, self._folder, self._start = zookeeper, folder, start_broker
        self.brokers: dict[int, RunningBroker] = {}

    def start(self, broker_id: int, partition_count: int = 2) -> None:
        """Start a broker, also again; it is ready and registered when this returns."""
        self.brokers[broker_id] = self._start("start", "-f", self._write(broker_id, partition_count))

    def grow(self, broker_id: int, partition_count: int) -> None:
        """Have a running broker offer more partitions."""
        self._write(broker_id, partition_count)
        self.brokers[broker_id].process.send_signal(1)
        text = f'{{"numParts":{partition_count},"broker":"{broker_id}-m"}}'
        path = f"/brokers/topics-pub/{TOPIC}/{broker_id}-m"
        wait_until(lambda: self.zookeeper.text(path) == text, "the new number of partitions is registered")

    def _write(self, broker_id: int, partition_count: int) -> Path:
        ini = self._folder / f"broker-{broker_id}.ini"
        system = system_section(broker_id, dataPath=self._folder / f"data-{broker_id}")
        ini.write_text(f"{system}{self.zookeeper.ini()}[topic={TOPIC}]\nnumPartitions={partition_count}\n")
        return ini

    def put(self, broker_id: int, partition_index: int, *values: str) -> None:
        """Append messages to one partition, acknowledged."""
        session = Session.connect(self.brokers[broker_id].address)
        for value in values:
            put(session, TOPIC, partition_index, Message(value.encode()))
        session.close()


class Copy:
    """A query that copies the topic to Parquet; it can be started again on its checkpoint."""

    def __init__(self, spark: SparkSession, zookeeper: ZooKeeperRoot, folder: Path) -> None:
        self._spark, self._zookeeper, self._folder = spark, zookeeper, folder

    def start(self, **options: str) -> StreamingQuery:
        given = {"zookeeper": self._zookeeper.option, "subscribe": TOPIC, "startingOffsets": "earliest", "retries": "2"}
        rows = self._spark.readStream.format("metaq").options(**(given | {"lossGraceMs": "5m"} | options)).load()
        writer = rows.selectExpr("cast(value as string) value", "partition").writeStream.format("parquet")
        return (
            writer.option("path", str(self._folder / "rows"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .start()
        )

    def seen(self) -> Counter[str]:
        """How often each value is in the output; read without Spark, as tests ask until they see what they wait for."""
        rows = self._folder / "rows"
        logs = [log.read_text().splitlines()[1:] for log in rows.glob("_spark_metadata/[0-9]*")]
        files = {rows / Path(json.loads(line)["path"]).name for lines in logs for line in lines}
        return Counter(value for file in files for value in read_table(file)["value"].to_pylist())

    def until_seen(self, query: StreamingQuery, *expected: str) -> None:
        """Return when the output has just ``expected``, each once; fail as soon as the query does."""

        def done() -> bool:
            if (error := query.exception()) is not None:
                raise error
            return self.seen().keys() >= set(expected)

        wait_until(done, f"{expected} to be seen", SEEN_WITHIN_S)
        assert self.seen() == Counter(expected)


@pytest.fixture
def cluster(zookeeper: ZooKeeperRoot, tmp_path: Path, start_broker: StartBroker) -> ChangingCluster:
    """Brokers 0 and 1, two partitions each."""
    cluster = ChangingCluster(zookeeper, tmp_path, start_broker)
    for broker_id in (0, 1):
        cluster.start(broker_id)
    return cluster


@pytest.fixture
def copy(spark: SparkSession, zookeeper: ZooKeeperRoot, tmp_path: Path) -> Copy:
    return Copy(spark, zookeeper, tmp_path / "copy")


def ends(query: StreamingQuery) -> dict[str, int]:
    """Where the query is in each partition."""
    (source,) = json.loads(query.lastProgress.json)["sources"]
    end = source["endOffset"]  # JSON in a text, or an object
    found: dict[str, int] = (json.loads(end) if isinstance(end, str) else end)["topics"][TOPIC]
    return found


def numbered(letter: str, numbers: Iterable[int]) -> list[str]:
    return [f"{letter}{number}" for number in numbers]


@pytest.mark.long
def test_an_idle_partition_holds_up_nobody_and_is_read_when_it_wakes(cluster: ChangingCluster, copy: Copy) -> None:
    cluster.put(0, 0, "a0")
    cluster.put(1, 0, "i0")  # and then nothing for long; 0-1 and 1-1 are never written at first
    query = copy.start()
    try:
        copy.until_seen(query, "a0", "i0")
        for number in range(1, 4):
            cluster.put(0, 0, f"a{number}")
            copy.until_seen(query, "i0", *numbered("a", range(number + 1)))
        query.processAllAvailable()
        assert ends(query) == {"0-0": 4 * FRAME_BYTES, "1-0": FRAME_BYTES}
        cluster.put(1, 0, "i1")
        cluster.put(1, 1, "n0", "n1")
        copy.until_seen(query, *numbered("a", range(4)), *numbered("i", range(2)), *numbered("n", range(2)))
        query.processAllAvailable()
        assert ends(query) == {"0-0": 4 * FRAME_BYTES, "1-0": 2 * FRAME_BYTES, "1-1": 2 * FRAME_BYTES}
    finally:
        query.stop()


def test_a_lost_broker_is_waited_for_while_the_others_go_on(cluster: ChangingCluster, copy: Copy) -> None:
    cluster.put(0, 0, "a0")
    cluster.put(1, 0, "b0", "b1")
    query = copy.start()
    try:
        copy.until_seen(query, "a0", "b0", "b1")
        cluster.brokers[1].kill()
        cluster.put(0, 0, "a1")
        wait_until(lambda: "a1" in copy.seen(), "the others to go on", SEEN_WITHIN_S)
        wait_until(lambda: cluster.zookeeper.text("/brokers/ids/1/master") is None, "ZooKeeper has given it up")
        cluster.put(0, 1, "d0")
        wait_until(lambda: "d0" in copy.seen(), "the others to go on", SEEN_WITHIN_S)
        lost = cluster.brokers[1].address
        cluster.start(1)
        assert cluster.brokers[1].address != lost
        cluster.put(1, 0, "b2")
        copy.until_seen(query, "a0", "a1", "b0", "b1", "b2", "d0")
    finally:
        query.stop()
    cluster.put(1, 1, "c0")  # acknowledged, and not read before the next crash
    cluster.brokers[1].kill()
    cluster.start(1)
    again = copy.start(startingOffsets="latest")
    try:
        copy.until_seen(again, "a0", "a1", "b0", "b1", "b2", "c0", "d0")
    finally:
        again.stop()


@pytest.mark.long
def test_what_joins_a_running_query_is_read_from_its_beginning(cluster: ChangingCluster, copy: Copy) -> None:
    cluster.put(0, 0, "before")
    query = copy.start(startingOffsets="latest")
    try:
        query.processAllAvailable()
        cluster.put(0, 0, "a0")
        copy.until_seen(query, "a0")
        cluster.grow(0, 4)
        cluster.put(0, 3, "g0", "g1")
        copy.until_seen(query, "a0", "g0", "g1")
        cluster.start(2)
        cluster.put(2, 1, "t0", "t1")  # before the query can know of the broker
        copy.until_seen(query, "a0", "g0", "g1", "t0", "t1")
        cluster.put(2, 0, "u0")
        cluster.put(0, 0, "a1")
        copy.until_seen(query, "a0", "a1", "g0", "g1", "t0", "t1", "u0")
        query.processAllAvailable()
        assert ends(query)["2-1"] == 2 * FRAME_BYTES
    finally:
        query.stop()


@pytest.mark.long
def test_zookeeper_freezes_and_dies_and_the_query_goes_on(
    cluster: ChangingCluster, copy: Copy, zookeeper_server: ZooKeeperServer
) -> None:
    cluster.put(0, 0, "a0")
    query = copy.start()
    try:
        copy.until_seen(query, "a0")
        zookeeper_server.freeze()
        frozen_s = time.monotonic()
        cluster.put(1, 0, "b0")
        wait_until(lambda: time.monotonic() > frozen_s + 2 * SESSION_S, "all sessions are too old")
        cluster.put(0, 0, "a1")
        copy.until_seen(query, "a0", "a1", "b0")
        zookeeper_server.thaw()
        again = [
            lambda each=each: each.log_text().count("registered in ZooKeeper") > 1 for each in cluster.brokers.values()
        ]
        for registered in again:
            wait_until(registered, "the brokers are registered again")
        zookeeper_server.kill()
        cluster.put(1, 1, "c0")
        copy.until_seen(query, "a0", "a1", "b0", "c0")
        zookeeper_server.restore()
        cluster.brokers[0].kill()
        cluster.start(0)
        cluster.put(0, 1, "d0")
        copy.until_seen(query, "a0", "a1", "b0", "c0", "d0")
    finally:
        query.stop()
        zookeeper_server.restore()
