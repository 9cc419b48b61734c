"""A real query that is diagnosed while it runs: topic, listener, checkpoint, and what is expected of the verdict."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fix_broker import RunningBroker, wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from metaq.client.metaq import MetaQ
from metaq.errors import MetaqError
from metaq.model import Message, Partition
from metaq_spark.checkpoint.folder import query_id_of
from metaq_spark.diagnosis.diagnosis import Watch
from metaq_spark.diagnosis.listener import ProgressListener
from metaq_spark.diagnosis.progress import read_events
from metaq_spark.diagnosis.report import Diagnosis

DEADLINE_S = 120.0


@dataclass
class DiagnosedQuery:
    """A topic of one broker, and a query of it with its checkpoint in ``folder``. ``seen``: all verdicts so far.

    With ``name_servers`` of the same broker it reads as RocketMQ's clients do.
    """

    spark: SparkSession
    broker: str
    folder: Path
    topic: str = "orders"
    name_servers: str = ""
    seen: list[Diagnosis] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reports = self.folder / "progress.jsonl"
        self.checkpoint = self.folder / "checkpoint"
        self.watches: dict[tuple[tuple[str, str], ...], Watch] = {}

    @property
    def reach(self) -> dict[str, str]:
        """The option that leads to the broker."""
        return {"nameServers": self.name_servers} if self.name_servers else {"brokers": self.broker}

    @contextmanager
    def listening(self) -> Iterator[ProgressListener]:
        listener = ProgressListener(self.reports, spark=self.spark, status_s=0.5)
        self.spark.streams.addListener(listener)
        try:
            yield listener
        finally:
            for query in self.spark.streams.active:
                with suppress(Exception):
                    query.stop()
            self.spark.streams.removeListener(listener)

    def put(self, *values: str, partition: int = 0, topic: str | None = None, attribute: str | None = None) -> None:
        with MetaQ(self.broker) as mq:
            producer = mq.producer()
            broker_id = next(iter(mq.cluster.brokers()))
            for value in values:
                message = Message(value.encode(), attribute)
                producer.put(topic or self.topic, message, Partition(broker_id, partition))

    def stream(self, **options: str) -> DataFrame:
        given = self.reach | {"startingOffsets": "earliest"} | options
        if "assign" not in given:
            given.setdefault("subscribe", self.topic)
        return self.spark.readStream.format("rocketmq" if self.name_servers else "metaq").options(**given).load()

    def start(
        self,
        frame: DataFrame,
        write: Callable[[DataFrame, int], None] | None = None,
        mode: str = "append",
        **trigger: Any,
    ) -> StreamingQuery:
        """Start a query into nothing, or into a function."""
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint)).queryName("diagnosed")
        writer = (writer.format("noop") if write is None else writer.foreachBatch(write)).outputMode(mode)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def look(self, **options: str) -> Diagnosis:
        """Look once more, as ``--watch`` does; ``options`` are of the read."""
        given = {**self.reach, "requestTimeoutMs": "1500", **options}
        watch = self.watches.setdefault(
            tuple(given.items()), Watch(self.checkpoint, options=given, progress=self.reports)
        )
        self.seen.append(watch.look())
        return self.seen[-1]

    def expect(self, verdict: str, rule: str, **options: str) -> Diagnosis:
        """Look until the verdict and its first rule are these; fail with the last one if that takes too long."""
        return self._look_until(lambda found: found.rule == rule, verdict, rule, options)

    def expect_among(self, verdict: str, rule: str, **options: str) -> Diagnosis:
        """Look until the verdict is this, and the rule is one of its reasons or remarks."""
        return self._look_until(lambda found: any(one.rule == rule for one in found.findings), verdict, rule, options)

    def _look_until(
        self, has_rule: Callable[[Diagnosis], bool], verdict: str, rule: str, options: dict[str, str]
    ) -> Diagnosis:
        def is_so() -> bool:
            with suppress(MetaqError, OSError):  # before its first batch
                found = self.look(**options)
                return str(found.verdict) == verdict and has_rule(found)
            return False

        end_s = time.monotonic() + DEADLINE_S
        while not is_so():
            last = self.seen[-1].text() if self.seen else "nothing was seen"
            assert time.monotonic() < end_s, f"waited in vain for {verdict} by {rule}: {last}"
            threading.Event().wait(0.3)
        return self.seen[-1]

    def wait_reported_end(self) -> None:
        """Wait until the reports have the end of a run of this query; Spark reports it late."""

        def is_reported() -> bool:
            ended_here = ("terminated", query_id_of(self.checkpoint))
            return any((each["event"], each["id"]) == ended_here for each in read_events(self.reports))

        wait_until(is_reported, "the end is reported", DEADLINE_S)

    @contextmanager
    def flooded(self, *values: str, every_s: float = 0.2) -> Iterator[None]:
        """Put these messages again and again, as long as the block runs."""
        stop = threading.Event()

        def put() -> None:
            while not stop.wait(every_s):
                self.put(*values)

        self.put(*values)
        producer = threading.Thread(target=put)
        producer.start()
        try:
            yield
        finally:
            stop.set()
            producer.join()

    def verdicts(self) -> list[str]:
        """All verdicts so far, without repeats in a row."""
        found: list[str] = []
        for one in self.seen:
            if not found or found[-1] != str(one.verdict):
                found.append(str(one.verdict))
        return found


def sentence_of(found: Diagnosis, rule: str) -> str:
    """Return what a rule says."""
    return next(one.sentence for one in found.findings if one.rule == rule)


def ended(query: StreamingQuery) -> None:
    """Wait for the end of a query, with an error or without."""
    wait_until(lambda: not query.isActive, "the query ends", DEADLINE_S)


def times(*values: object) -> list[str]:
    """Messages with an event time each, as JSON."""
    return [json.dumps({"at": str(value)}) for value in values]


__all__ = ["DiagnosedQuery", "RunningBroker", "ended", "sentence_of", "times"]
