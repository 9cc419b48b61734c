"""Spark with brokers that it finds in a real ZooKeeper, and a consumer group that hands over and is handed over to."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import wait_until
from fix_spark import run_to_end
from fix_zookeeper import Brokers, ZooKeeperRoot, meta
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.spark]

FRAME_BYTES = 21
"""Size of a message of one byte."""


class Queue:
    """One topic, by ``zookeeper`` alone."""

    def __init__(self, spark: SparkSession, zookeeper: ZooKeeperRoot, topic: str, folder: Path) -> None:
        self._spark, self._folder, self.zookeeper = spark, folder, zookeeper
        self._given = {"zookeeper": zookeeper.option, "retries": "10"}
        self._topic = topic

    def write(self, values: str, **options: str) -> None:
        rows = self._spark.createDataFrame([(value, 0) for value in values], "value string, partition int").coalesce(1)
        given = self._given | {"topic": self._topic} | options
        rows.write.format("metaq").mode("append").options(**given).save()

    def could_write(self, values: str) -> bool:
        """Write; a task that looks for the broker where it was fails, and has written nothing."""
        try:
            self.write(values)
        except PySparkException as error:
            if "ConnectionFailed" not in str(error):
                raise
            return False
        return True

    def read(self, **options: str) -> str:
        given = self._given | {"subscribe": self._topic} | options
        rows = self._spark.read.format("metaq").options(**given).load()
        return "".join(row.value.decode() for row in rows.orderBy("offset").collect())

    def drain(self, name: str, **options: str) -> str:
        """Run the stream called ``name`` to the end; return all that it has ever read."""
        given = self._given | {"subscribe": self._topic} | options
        rows = self._spark.readStream.format("metaq").options(**given).load()
        writer = (
            rows.writeStream.format("parquet")
            .option("path", str(self._folder / name / "rows"))
            .option("checkpointLocation", str(self._folder / name / "checkpoint"))
        )
        assert run_to_end(writer).awaitTermination(120)
        found = self._spark.read.parquet(str(self._folder / name / "rows"))
        return "".join(row.value.decode() for row in found.orderBy("offset").collect())

    def offset(self, group: str) -> str | None:
        return self.zookeeper.text(f"/consumers/{group}/offsets/{self._topic}/3-0")


def test_reads_and_writes_by_zookeeper(spark: SparkSession, brokers: Brokers, tmp_path: Path) -> None:
    queue = Queue(spark, brokers.zookeeper, "test", tmp_path)
    broker = brokers.start("b", "[topic=te*]\n")
    queue.write("abc")  # nobody has written the topic yet: only a pattern admits it
    assert queue.read() == "abc"
    wait_until(lambda: brokers.zookeeper.text("/brokers/topics-pub/test/3-m") is not None, "it is registered")
    queue.write("de", delivery="exactly_once")
    assert queue.drain("first", startingOffsets="earliest") == "abcde"
    assert broker.stop() == 0
    with pytest.raises(PySparkException, match=f"broker {broker.address}"):
        queue.read(retries="0")  # not "nothing there"
    moved = brokers.start("b", "[topic=te*]\n")
    assert brokers.master() == meta(moved.address) != meta(broker.address)
    wait_until(lambda: queue.could_write("f"), "writes find it where it is now", 60)
    assert queue.read() == "abcdef"
    assert queue.drain("first") == "abcdef"


@pytest.mark.long
def test_a_group_hands_over_and_is_handed_over_to(spark: SparkSession, brokers: Brokers, tmp_path: Path) -> None:
    queue = Queue(spark, brokers.zookeeper, "test", tmp_path)
    brokers.start("b")
    queue.write("abcd")
    group = {"group": "g", "startingOffsets": "group"}
    assert queue.read(**group) == "abcd", "a group that has read nothing begins at the start"
    brokers.zookeeper.put("/consumers/g/offsets/test/3-0", f"-5468926877571731456-{2 * FRAME_BYTES}")
    assert queue.read(**group) == "cd"
    assert queue.drain("copy", **group, commitGroupOffsets="true") == "cd"
    assert queue.offset("g") == f"-1-{4 * FRAME_BYTES}"
    queue.write("e")
    assert queue.drain("copy", **group, commitGroupOffsets="true") == "cde"
    assert queue.offset("g") == f"-1-{5 * FRAME_BYTES}"
    assert queue.drain("other", **group) == ""
