"""Replay a part of a topic into another topic, or into the same one, exactly once.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/replay_range.py \\
        --brokers 127.0.0.1:8123 --topic orders --to-topic orders_again \\
        --from-time 2026-11-20T06:00:00Z --to-time 2026-11-20T07:00:00Z --types paid,refunded

Payload, attribute, partition and order are kept; ids and timestamps are new. With ``--dry-run`` the messages are only
counted.

A replay has a name, derived from its arguments unless ``--name`` gives one. The brokers remember it: repeating a
replay, after a crash or by mistake, writes nothing twice. ``docs/jobs.md`` describes its guarantees.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from job_failures import exit_on_failure
from job_report import JobReport
from named_copies import copy_once
from partition_targets import (
    PartitionTargets,
    assign_partitions,
    exactly_once,
    partitions_of,
    whole_attribute,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metaq.backends.metaq.pool import shared_pool
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, Partition
from metaq.operate.mirror.targets import assign

SOURCE = ("brokers", "topic", "from_time", "from_offsets", "to_time", "to_offsets", "types")
TARGET = ("to_brokers", "to_topic")
"""The arguments from which the name of a replay is derived."""


def replay_name(arguments: argparse.Namespace) -> str:
    """Return the given name, or a name derived from the arguments, independent of their order."""
    if arguments.name is not None:
        return str(arguments.name)
    asked = {key: getattr(arguments, key) for key in SOURCE + TARGET}
    return f"replay-{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]}"


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the connector's options for the selected range."""
    options = {
        "brokers": arguments.brokers,
        "subscribe": arguments.topic,
        "startingTimestamp": arguments.from_time,
        "startingOffsetsByTimestampStrategy": "latest" if arguments.from_time else None,
        "startingOffsets": arguments.from_offsets,
        "endingTimestamp": arguments.to_time,
        "endingOffsets": arguments.to_offsets,
        "messageTypes": arguments.types,
    }
    return {name: value for name, value in options.items() if value is not None}


def settle_targets(arguments: argparse.Namespace) -> PartitionTargets:
    """Choose the targets: among the same brokers the partition of the same name, else by position.

    Raises:
        ValueError: The target has too few partitions.
        MetaqError: A broker could not be asked, or the target does not accept the topic.
    """
    source = FixedDirectory(addresses(arguments.brokers), shared_pool())
    target = FixedDirectory(addresses(arguments.to_brokers or arguments.brokers), shared_pool())
    targets = list(target.writable(arguments.to_topic))
    if arguments.to_brokers is not None:
        return assign(arguments.topic, partitions_of(source, arguments.topic), targets, {}, fold=arguments.fold)
    stored = source.partitions(arguments.topic)
    known = {partition: partition for partition in stored if partition in targets}
    return assign(arguments.topic, stored, targets, known, fold=arguments.fold)


def transform(messages: DataFrame, topic: str, assigned: PartitionTargets, replaced: bool = False) -> DataFrame:
    """Convert rows of a read of ``topic`` to rows of a write: ``partition`` (a target's number), ``attribute``,
    ``value``.

    An attribute with replaced bytes fails the write, unless ``replaced`` allows it.
    """
    whole = messages if replaced else messages.withColumn("attribute", whole_attribute())
    return assign_partitions(whole, {topic: assigned}).select("partition", "attribute", "value")


def count(messages: DataFrame) -> DataFrame:
    """Return for each partition the number of messages, and first and last offset and time, sorted."""
    return (
        messages.groupBy("broker_id", "partition")
        .agg(
            F.count("*").alias("messages"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min("timestamp").alias("first_time"),
            F.max("timestamp").alias("last_time"),
        )
        .orderBy("broker_id", "partition")
    )


def dry_run(spark: SparkSession, arguments: argparse.Namespace) -> Mapping[Partition, int]:
    """Print what would be replayed, and return the number of messages of each partition."""
    columns = "broker_id,partition,offset,timestamp"
    counted = count(spark.read.format("metaq").options(columns=columns, **read_options(arguments)).load()).collect()
    for row in counted:
        print(
            f"{arguments.topic}/{row.broker_id}-{row.partition}: {row.messages} messages, "
            f"offsets {row.first_offset} to {row.last_offset}, times {row.first_time} to {row.last_time}"
        )
    found = {Partition(row.broker_id, row.partition): row.messages for row in counted}
    print(f"{sum(found.values())} messages in all; nothing was written")
    return found


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Replay, and print the name of the replay."""
    assigned, name = settle_targets(arguments), replay_name(arguments)
    messages = spark.read.format("metaq").options(**read_options(arguments)).load()
    done = f"{name}: topic {arguments.topic} has no partitions; nothing was written"
    if assigned:
        options: dict[str, Any] = {
            "brokers": arguments.to_brokers or arguments.brokers,
            "topic": arguments.to_topic,
            **exactly_once({arguments.topic: assigned}, name),
        }
        with JobReport("replay_range") as report:
            done = copy_once(
                report,
                messages,
                lambda rows: transform(rows, arguments.topic, assigned, arguments.replaced_attributes),
                options,
                compared=arguments.name is not None,  # an end such as latest moves, and a derived name contains it
            )
    print(done)


def addresses(brokers: str) -> list[Address]:
    """Parse ``host:port,host:port``.

    Raises:
        ValueError: It has another form.
    """
    return [Address.parse(broker) for broker in brokers.split(",")]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replay a part of a topic, exactly once.")
    parser.add_argument("--brokers", required=True, help="host:port of the brokers, separated by commas")
    parser.add_argument("--topic", required=True, help="the topic to take messages from")
    parser.add_argument("--to-topic", required=True, help="the topic to write them to; may be the same")
    parser.add_argument("--to-brokers", help="brokers of the topic to write to (default: the same); of this project")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from-time", help="begin with the first message taken at or after: ISO 8601, or ms since 1970")
    start.add_argument("--from-offsets", help="begin at these offsets: JSON as of startingOffsets (default: earliest)")
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--to-time", help="end before the first message taken at or after")
    end.add_argument("--to-offsets", help="end before these offsets: JSON as of endingOffsets, or latest")
    parser.add_argument("--types", help="only messages whose attribute is one of these, separated by commas")
    parser.add_argument("--name", help="name of the replay; another name replays the same part once more")
    parser.add_argument("--fold", action="store_true", help="let partitions share one where the target has fewer")
    parser.add_argument(
        "--replaced-attributes", action="store_true", help="copy attributes that are not UTF-8 with U+FFFD, do not fail"
    )
    parser.add_argument("--dry-run", action="store_true", help="only count the messages")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("replay_range").getOrCreate()
    with exit_on_failure("replay_range"):
        (dry_run if arguments.dry_run else run)(spark, arguments)


if __name__ == "__main__":
    main()
