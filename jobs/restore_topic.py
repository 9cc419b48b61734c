"""Write a topic from an archive (``archive_topics.py``) to brokers, exactly once, keeping partition and order.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/restore_topic.py \\
        --archive archive --topic orders --brokers 10.1.0.1:8123 --to-topic orders

Only files that a manifest names are read, and nothing is written if the manifests are not in order. Payload and
attribute are unchanged; ids and timestamps are new. Partitions are assigned by position, see ``partition_targets``.

Like a replay, a restore has a name, derived from its arguments unless ``--name`` gives one. The brokers remember it:
repeating a restore, after a crash or by mistake, writes nothing twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from archive_manifests import ArchiveError, Manifest, check_chain, where_of
from archive_topics import ARCHIVE_SCHEMA, read_manifests
from job_failures import exit_on_failure
from job_report import JobReport
from named_copies import copy_once
from numbered_files import NumberedFiles, spark_path
from partition_targets import PartitionTargets, assign_partitions, exactly_once, whole_attribute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metaq.backends.metaq.pool import shared_pool
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address
from metaq.operate.mirror.targets import assign


def files_of(topic: str, manifests: Sequence[Manifest]) -> list[str]:
    """Return the paths, below the archive's folder, of the files with messages of the topic."""
    return sorted(
        {
            f"data/batch={manifest['batch']:08}/{name}"
            for manifest in manifests
            for entry in manifest["ranges"]
            if entry["topic"] == topic
            for name in entry["files"]
        }
    )


def restore_name(arguments: argparse.Namespace, batch_count: int) -> str:
    """Return the given name, or one derived from the archive, its last batch, and the target topic."""
    if arguments.name is not None:
        return str(arguments.name)
    asked = [arguments.archive, arguments.topic, arguments.brokers, arguments.to_topic, batch_count]
    return f"restore-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}"


def transform(archived: DataFrame, topic: str, assigned: PartitionTargets, replaced: bool = False) -> DataFrame:
    """Convert archived rows with their ``batch`` to rows of a write: ``partition`` (a target's number), ``attribute``,
    ``value``.

    The messages of a partition are in one task, in the order of batches (a later incarnation of a partition is in a
    later batch) and offsets. An attribute with replaced bytes fails the write, unless ``replaced`` allows it.
    """
    wanted = archived.where(F.col("topic") == topic)
    ordered = wanted.repartition(max(1, len(assigned)), "broker_id", "partition").sortWithinPartitions(
        "broker_id", "partition", "batch", "offset"
    )
    whole = ordered if replaced else ordered.withColumn("attribute", whole_attribute())
    return assign_partitions(whole, {topic: assigned}).select("partition", "attribute", "value")


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Restore, and print the name of the restore.

    Raises:
        ArchiveError: The archive is not in order, or has nothing of the topic.
        ValueError: The target has too few partitions.
        MetaqError: A broker could not be asked, or none accepts the topic.
    """
    files = NumberedFiles(f"{arguments.archive}/manifests")
    manifests = read_manifests(files)
    if problems := list(check_chain(files.numbers(), manifests)):
        raise ArchiveError(f"the archive is not in order, so nothing is restored: {'; '.join(problems)}")
    sources = {where_of(entry) for manifest in manifests for entry in manifest["ranges"]}
    partitions = [where.partition for where in sources if where.topic == arguments.topic]
    if not partitions:
        known = ", ".join(sorted({where.topic for where in sources})) or "none"
        raise ArchiveError(f"--topic {arguments.topic!r}: the archive has nothing of it; its topics are: {known}")
    directory = FixedDirectory([Address.parse(one) for one in arguments.brokers.split(",")], shared_pool())
    targets = list(directory.writable(arguments.to_topic))
    assigned = assign(arguments.topic, partitions, targets, {}, fold=arguments.fold)
    paths = [f"{spark_path(arguments.archive)}/{name}" for name in files_of(arguments.topic, manifests)]
    batch = F.regexp_extract("_metadata.file_path", r"batch=(\d+)/(?:[^/]+/)?[^/]+$", 1).cast("bigint")
    archived = spark.read.schema(ARCHIVE_SCHEMA).parquet(*paths).withColumn("batch", batch)
    name = restore_name(arguments, len(manifests))
    options: dict[str, Any] = {
        "brokers": arguments.brokers,
        "topic": arguments.to_topic,
        **exactly_once({arguments.topic: assigned}, name),
    }
    with JobReport("restore_topic") as report:
        done = copy_once(
            report,
            archived,
            lambda rows: transform(rows, arguments.topic, assigned, arguments.replaced_attributes),
            options,
        )
    print(done)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a topic from an archive to brokers again, exactly once.")
    parser.add_argument("--archive", required=True, help="folder or URI of the archive")
    parser.add_argument("--topic", required=True, help="the archived topic")
    parser.add_argument("--brokers", required=True, help="host:port of the brokers to write to, separated by commas")
    parser.add_argument("--to-topic", required=True, help="the topic to write to")
    parser.add_argument("--name", help="name of the restore; another name restores the same once more")
    parser.add_argument("--fold", action="store_true", help="let partitions share one where the target has fewer")
    parser.add_argument(
        "--replaced-attributes", action="store_true", help="take attributes with U+FFFD as they are, do not fail"
    )
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("restore_topic").getOrCreate()
    with exit_on_failure("restore_topic"):
        run(spark, arguments)


if __name__ == "__main__":
    main()
