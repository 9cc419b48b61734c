"""Mirror topics to other brokers, keeping partition and order; each message exactly once if the target is MetaQ.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/mirror_topics.py \\
        --from-brokers 10.0.0.1:8123 --to-brokers 10.1.0.1:8123 --topics orders,payments --checkpoint progress/mirror

Payload and attribute are unchanged; message ids and timestamps are the target's. Run it again to continue; with
``--every`` it keeps running. ``docs/jobs.md`` describes its guarantees.

``--from-rocketmq`` and ``--to-rocketmq`` name the name servers of a RocketMQ cluster instead: in either direction, a
tag is an attribute. RocketMQ has no transaction over several messages, so there a repeated batch is written again.

The target of a partition is chosen when the partition is first seen (``metaq.operate.mirror.targets``) and stored in
the folder ``mirror`` of the checkpoint, with the name under which the micro-batches are written::

    {"v": 1, "name": "mirror-0f9c...", "prefix": "", "topics": {"orders": {"0-0": "7-0", "0-1": "7-1"}}}

Each micro-batch is one transaction at the target, identified by that name and its number: if Spark repeats it after a
crash, it changes nothing, or replaces the unfinished one.
"""

from __future__ import annotations

import argparse
import re
import uuid
from collections.abc import Mapping
from typing import Any, Self

from job_arguments import add_trigger, pattern, trigger
from job_failures import exit_on_failure
from job_report import JobReport
from mirror_endpoints import copies_between, endpoint
from numbered_files import NumberedFiles, spark_path
from partition_targets import PartitionTargets, assign_partitions, whole_attribute
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from metaq.errors import MetaqError
from metaq.model import Partition
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.retry import Attempts, RetryPolicy
from metaq.operate.mirror.targets import assign


class Memory:
    """The stored state of the mirror: its name, the prefix of its topics, and the target of every partition.

    Raises:
        ValueError: The checkpoint is from a mirror with another prefix, or from a newer version of this job.
    """

    def __init__(self, checkpoint: str, prefix: str) -> None:
        self._files = NumberedFiles(f"{checkpoint}/mirror")
        numbers = self._files.numbers()
        self._next = numbers[-1] + 1 if numbers else 0
        tree: dict[str, Any] = (
            self._files.read(numbers[-1]) if numbers else {"v": 1, "name": f"mirror-{uuid.uuid4().hex}"}
        )
        if tree["v"] != 1:
            raise ValueError(f"{self._files.folder}: form {tree['v']} was written by a newer version; known is 1")
        if tree.get("prefix", prefix) != prefix:
            raise ValueError(f"--prefix {prefix!r}: this checkpoint's mirror was begun with {tree['prefix']!r}")
        self.name: str = tree["name"]
        self._prefix = prefix
        self.assigned = targets_from_tree(tree.get("topics", {}))

    def keep(self, assigned: Mapping[str, PartitionTargets]) -> None:
        """Store the targets, if any is new, before a message is written."""
        if self._next and assigned == self.assigned:
            return
        tree = {"v": 1, "name": self.name, "prefix": self._prefix, "topics": targets_to_tree(assigned)}
        self._files.add(self._next, tree)
        self._next += 1
        self.assigned = dict(assigned)


def targets_to_tree(assigned: Mapping[str, PartitionTargets]) -> dict[str, dict[str, str]]:
    """Return the targets as a JSON tree, in the order of topics and partitions."""
    return {
        topic: {str(source): str(target) for source, target in sorted(of_topic.items())}
        for topic, of_topic in sorted(assigned.items())
    }


def targets_from_tree(tree: Mapping[str, Mapping[str, str]]) -> dict[str, PartitionTargets]:
    """Convert the result of ``targets_to_tree`` back."""
    return {
        topic: {Partition.parse_any(source): Partition.parse_any(target) for source, target in of_topic.items()}
        for topic, of_topic in tree.items()
    }


def transform(
    messages: DataFrame, assigned: Mapping[str, PartitionTargets], prefix: str, replaced: bool = False
) -> DataFrame:
    """Convert rows of a read to rows of a write: ``topic``, ``partition`` (a target's number), ``attribute``,
    ``value``.

    An attribute with replaced bytes fails the write, unless ``replaced`` allows it.
    """
    whole = messages if replaced else messages.withColumn("attribute", whole_attribute())
    topic = F.concat(F.lit(prefix), F.col("topic")).alias("topic")
    return assign_partitions(whole, assigned).select(topic, "partition", "attribute", "value")


class Mirror:
    """Writes micro-batches, and chooses the targets of new partitions. Has connections until it is closed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.rows_out = 0
        self._memory = Memory(arguments.checkpoint, arguments.prefix)
        self.source = endpoint(arguments.from_brokers, arguments.from_rocketmq)
        self.target = endpoint(arguments.to_brokers, arguments.to_rocketmq)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
        self.target.close()

    def settle_targets(self) -> None:
        """Give every partition of the mirrored topics a target; retries a few times if a broker does not answer.

        Raises:
            ValueError: The target has too few partitions, or a topic would be mirrored to itself or is a mirror.
            MetaqError: A broker could not be asked, or the target does not accept a topic.
        """
        attempts = Attempts(RetryPolicy(), SYSTEM_CLOCK)
        while True:
            try:
                self._memory.keep(self._all_targets())
                return
            except MetaqError as error:
                attempts.pause_after(error)

    def _all_targets(self) -> dict[str, PartitionTargets]:
        arguments, known = self.arguments, self._memory.assigned
        topics = [topic for topic in self.source.topics() if is_chosen(topic, arguments)]
        if self.source.addresses() & self.target.addresses():
            refuse_circles(topics, arguments.prefix)
        assigned = dict(known)
        for topic in topics:
            sources = self.source.sources(topic)
            if set(sources) - set(known.get(topic, {})):
                targets = self.target.targets(arguments.prefix + topic)
                assigned[topic] = assign(topic, sources, targets, known.get(topic, {}), fold=arguments.fold)
        return assigned

    def _has_unread(self) -> bool:
        """Return whether a broker has messages of a partition without a target. Brokers that do not answer are ignored.
        """
        known = self._memory.assigned
        return any(
            where.partition not in known.get(where.topic, {})
            for where in self.source.unseen_partitions(known)
            if is_chosen(where.topic, self.arguments)
        )

    def write_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; for ``foreachBatch``."""
        if self._has_unread():
            self.settle_targets()
        arguments, memory = self.arguments, self._memory
        if {self.source.format, self.target.format} == {"metaq"}:
            copies = transform(rows, memory.assigned, arguments.prefix, arguments.replaced_attributes)
        else:
            numbers = self.target.numbers(memory.assigned, arguments.prefix)
            copies = copies_between(rows, numbers, self.target.format, arguments.prefix)
        options = {**self.target.options, **self.target.write_options(memory.assigned, memory.name, batch_id)}
        seen = Observation()
        counted = copies.observe(seen, F.count(F.lit(1)).alias("rows"))
        counted.write.format(self.target.format).mode("append").options(**options).save()
        self.rows_out += int(seen.get["rows"])


def is_chosen(topic: str, arguments: argparse.Namespace) -> bool:
    """Return whether a topic of the source is mirrored."""
    if arguments.topics is not None:
        return topic in arguments.topics.split(",")
    return re.fullmatch(arguments.pattern, topic) is not None


def refuse_circles(topics: list[str], prefix: str) -> None:
    """Refuse to read what the mirror writes, if both endpoints are the same brokers.

    Raises:
        ValueError: A topic would be mirrored to itself, or is the mirror of another.
    """
    if not prefix:
        raise ValueError("--prefix: needed where source and target share a broker; a topic is not mirrored to itself")
    for topic in topics:
        if topic.removeprefix(prefix) in set(topics) - {topic}:
            raise ValueError(
                f"topic {topic!r} is the mirror of {topic.removeprefix(prefix)!r}; source and target share a broker: "
                f"leave such topics out, for example with --pattern '(?!{re.escape(prefix)}).*'"
            )


def run(spark: SparkSession, mirror: Mirror) -> StreamingQuery:
    """Start the query of ``mirror``. Errors are raised before anything is written."""
    mirror.settle_targets()
    arguments = mirror.arguments
    chosen = {"subscribe": arguments.topics} if arguments.topics else {"subscribePattern": arguments.pattern}
    options = {**mirror.source.options, "maxBytesPerTrigger": arguments.max_bytes_per_batch, **chosen}
    messages = spark.readStream.format(mirror.source.format).options(startingOffsets=arguments.start, **options).load()
    return (
        messages.writeStream.foreachBatch(mirror.write_batch)
        .option("checkpointLocation", spark_path(arguments.checkpoint))
        .queryName("mirror_topics")
        .trigger(**trigger(arguments))
        .start()
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mirror topics to other brokers.")
    source, target = (parser.add_mutually_exclusive_group(required=True) for _ in range(2))
    source.add_argument("--from-brokers", help="host:port of the source's MetaQ brokers, separated by commas")
    source.add_argument("--from-rocketmq", metavar="NAME_SERVERS", help="host:port of its name servers, separated by ;")
    target.add_argument("--to-brokers", help="MetaQ brokers of the target; all are brokers of this project")
    target.add_argument("--to-rocketmq", metavar="NAME_SERVERS", help="host:port of the target's name servers")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--topics", help="topics to mirror, separated by commas")
    chosen.add_argument("--pattern", type=pattern, help="regular expression for whole names, also of future topics")
    parser.add_argument("--checkpoint", required=True, help="folder or URI for the progress, kept between runs")
    parser.add_argument("--prefix", default="", help="put before the names of topics at the target (default: nothing)")
    parser.add_argument("--fold", action="store_true", help="let partitions share one where the target has fewer")
    parser.add_argument("--start", choices=("earliest", "latest"), default="earliest", help="where a new mirror begins")
    parser.add_argument("--max-bytes-per-batch", default="256m", help="size of a micro-batch (default: 256m)")
    parser.add_argument(
        "--replaced-attributes", action="store_true", help="copy attributes that are not UTF-8 with U+FFFD, do not fail"
    )
    add_trigger(parser)
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("mirror_topics").getOrCreate()
    with exit_on_failure("mirror_topics"), Mirror(arguments) as mirror, JobReport("mirror_topics") as report:
        report.follow(run(spark, mirror), lambda: mirror.rows_out)


if __name__ == "__main__":
    main()
