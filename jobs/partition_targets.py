"""Chooses the target partition of copied messages, for jobs that keep partitions and order.

A *target* is chosen once for each partition of the source and never changes, so that the copies of a partition's
messages stay in one partition, in order, whatever partitions are added later on either side. The rule is
``metaq.operate.mirror.targets.assign``. ``assign_partitions`` makes a column of the targets, ``ordered_partitions`` the
connector's option for it: a list of names, so that a message whose partition is missing fails the write instead of
going elsewhere.

Used on the driver only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from metaq.discovery.base import Directory
from metaq.errors import TopicNotFound
from metaq.model import Partition

PartitionTargets = Mapping[Partition, Partition]
"""Partitions of one topic at the source -> partitions of the target for their messages."""

REPLACEMENT_CHARACTER = "\ufffd"
"""The character that the connector shows for bytes of an attribute that are not UTF-8."""


def partitions_of(directory: Directory, topic: str) -> list[Partition]:
    """Return the partitions that ``topic`` is configured to have, and other ones with messages.

    Raises:
        MetaqError: A broker could not be asked.
    """
    stored = set(directory.partitions(topic))
    try:
        return sorted(stored | set(directory.writable(topic)))
    except TopicNotFound:  # it accepts no messages any more, and may still have some
        return sorted(stored)


def ordered_partitions(targets: Iterable[Partition]) -> str:
    """Return the value of the option ``orderedPartitions`` that lists all of ``targets`` (at least one)."""
    return ";".join(f"{broker_id}:{count}" for broker_id, count in sorted(_counts(targets).items()))


def partition_numbers(targets: Iterable[Partition]) -> dict[Partition, int]:
    """Return the position of each partition in the list of ``ordered_partitions``."""
    listed = [
        Partition(broker_id, index)
        for broker_id, count in sorted(_counts(targets).items())
        for index in range(count)
    ]  # fmt: skip
    return {partition: number for number, partition in enumerate(listed)}


def _counts(targets: Iterable[Partition]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for target in targets:
        counts[target.broker_id] = max(counts.get(target.broker_id, 0), target.index + 1)
    return counts


def exactly_once(assigned: Mapping[str, PartitionTargets], name: str, version: int = 0) -> dict[str, Any]:
    """Return the connector's options for writing copies in one transaction; it is written once per ``name`` and
    ``version``.
    """
    return {
        "orderedPartitions": ordered_partitions(all_targets(assigned)),
        "delivery": "exactly_once",
        "txnAppId": name,
        "txnVersion": version,
    }


def all_targets(assigned: Mapping[str, PartitionTargets]) -> set[Partition]:
    """Return the partitions of the target that any topic uses."""
    return {target for of_topic in assigned.values() for target in of_topic.values()}


def assign_partitions(messages: DataFrame, assigned: Mapping[str, PartitionTargets]) -> DataFrame:
    """Replace ``partition`` by the number of the message's target. A message without a target fails the write.

    ``messages`` has ``topic``, ``broker_id`` and ``partition`` as in a read; other columns are kept.
    """
    numbers = partition_numbers(all_targets(assigned))
    tree = {
        topic: {str(source): numbers[target] for source, target in of_topic.items()}
        for topic, of_topic in assigned.items()
    }
    name = F.concat_ws("-", "broker_id", "partition")
    number = F.from_json(F.lit(json.dumps(tree)), "map<string, map<string, int>>")[F.col("topic")][name]
    unknown = F.concat(F.col("topic"), F.lit("/"), name, F.lit(": no partition of the target was assigned to it"))
    return messages.withColumn("partition", F.coalesce(number, _fail(unknown, "int")))


def whole_attribute() -> Column:
    """Return ``attribute``; bytes that are not UTF-8 fail the query, because the copy would differ from the message."""
    at = F.concat(F.col("topic"), F.lit("/"), F.concat_ws("-", "broker_id", "partition"), F.lit(", offset "), "offset")
    problem = F.concat(
        at,
        F.lit(
            ": the attribute holds U+FFFD, which stands for bytes that are not UTF-8 and cannot be copied unchanged; "
            "--replaced-attributes copies it as it is shown"
        ),
    )
    broken = F.contains("attribute", F.lit(REPLACEMENT_CHARACTER))
    return F.when(broken, _fail(problem, "string")).otherwise(F.col("attribute")).alias("attribute")


def _fail(problem: Column, kind: str) -> Column:
    return F.raise_error(problem).cast(kind)
