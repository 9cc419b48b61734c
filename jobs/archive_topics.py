"""Archive topics as Parquet, with manifests by which its completeness can be checked.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/archive_topics.py \\
        --brokers 127.0.0.1:8123 --topics orders,payments --output archive
    spark-submit ... jobs/archive_topics.py --output archive --verify

    archive/manifests/00000012.json            what batch 12 consists of, see archive_manifests
    archive/data/batch=00000012/5f0c..../part-....parquet    in a folder that no other run uses

The manifests are the job's only state. A batch begins where the last manifest ends. The job writes its files, reads
them back, compares them with the byte ranges, and only then writes the manifest. If a run fails before that, the next
one writes other files, and removes what the manifest does not name. Run it again to archive newer messages; with
``--every-seconds`` it keeps running.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from archive_manifests import (
    FORM,
    ArchiveError,
    Contents,
    FilesOf,
    Manifest,
    PlannedRange,
    archived_after,
    check_chain,
    check_contents,
    check_leftovers,
    last_archived,
    make_manifest,
    plan,
    refuse_losses,
    refuse_older_copies,
    span,
)
from job_arguments import pattern
from job_failures import exit_on_failure
from job_report import JobReport
from numbered_files import NumberedFiles, open_folder, spark_path
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metaq.backends.metaq.boundaries import frame_boundary
from metaq.backends.metaq.pool import shared_pool
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Address, OffsetRange, Partition, PartitionState, TopicPartition
from metaq.sizes import parse_size
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.options.table import Use

ARCHIVE_SCHEMA = (
    "topic string, broker_id int, partition int, offset bigint, message_id bigint, timestamp timestamp, "
    "attribute string, value binary"
)
FRAME_HEADER_BYTES, ATTRIBUTE_LENGTH_BYTES = 20, 4
REPLACEMENT_CHARACTER = "\ufffd"


def transform(archived: DataFrame) -> DataFrame:
    """Summarise rows of ``ARCHIVE_SCHEMA`` with their ``file``: the contents of each file for each partition.

    ``topic``, ``broker_id``, ``partition``, ``file``, ``messages``, ``first_offset``, ``last_offset``, ``frame_bytes``
    (as the broker stores them), ``replaced_attributes`` (attributes with U+FFFD, whose bytes on the broker may differ).
    """
    attribute_bytes = F.coalesce(F.octet_length("attribute") + ATTRIBUTE_LENGTH_BYTES, F.lit(0))
    frame_bytes = F.octet_length("value").cast("bigint") + attribute_bytes + FRAME_HEADER_BYTES
    return archived.groupBy("topic", "broker_id", "partition", "file").agg(
        F.count("*").alias("messages"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.sum(frame_bytes).alias("frame_bytes"),
        F.count_if(F.contains("attribute", F.lit(REPLACEMENT_CHARACTER))).alias("replaced_attributes"),
    )


def measure(spark: SparkSession, output: str, part: str = "data") -> dict[int, FilesOf]:
    """Read the contents of the files in a folder of the archive again; return them by batch and their path in it."""
    rows = spark.read.schema(ARCHIVE_SCHEMA).parquet(f"{spark_path(output)}/{part}")
    named = rows.withColumn("file", F.regexp_extract("_metadata.file_path", r"batch=(\d+/(?:[^/]+/)?[^/]+)$", 1))
    found: dict[int, dict[TopicPartition, dict[str, Contents]]] = {}
    for row in transform(named).collect():
        batch, _, name = row.file.partition("/")
        where = TopicPartition(row.topic, Partition(row.broker_id, row.partition))
        available = Contents(row.messages, row.first_offset, row.last_offset, row.frame_bytes, row.replaced_attributes)
        found.setdefault(int(batch), {}).setdefault(where, {})[name] = available
    return {**found}


def read_manifests(files: NumberedFiles) -> list[Manifest]:
    """Return all manifests in order.

    Raises:
        ArchiveError: One was written by a newer version of this job.
        ValueError: One is damaged.
    """
    manifests = [files.read(number) for number in files.numbers()]
    for number, manifest in zip(files.numbers(), manifests, strict=True):
        if manifest["v"] != FORM:
            raise ArchiveError(f"manifest {number} has form {manifest['v']} of a newer version; known is {FORM}")
    return manifests


class Archive:
    """Adds batches to an archive. ``report`` counts their messages."""

    def __init__(self, spark: SparkSession, arguments: argparse.Namespace, report: JobReport | None = None) -> None:
        self._spark, self._arguments = spark, arguments
        self._report = report or JobReport("archive_topics")
        self._pool = shared_pool()
        self._directory = FixedDirectory([Address.parse(one) for one in arguments.brokers.split(",")], self._pool)
        options = parse_source_options({"brokers": arguments.brokers, "subscribePattern": ".*"}, Use.BATCH_READ)
        self._last_messages = Cluster(options, self._pool).last_messages
        self._files = NumberedFiles(f"{arguments.output}/manifests")
        manifests = read_manifests(self._files)
        self._next, self._archived = len(manifests), archived_after(manifests)
        problems = list(check_chain(self._files.numbers(), manifests))
        if problems:
            raise ArchiveError(f"the archive is not in order, so nothing is added to it: {'; '.join(problems)}")
        if manifests:
            self._remove_unnamed(manifests[-1])

    def catch_up(self) -> int:
        """Add batches until one has reached the ends; return their number.

        Raises:
            ArchiveError: Messages were lost, or a batch's files do not have the planned contents.
            MetaqError: A broker could not be asked.
        """
        count, reached = 0, False
        while not reached:
            wanted = self._plan()
            planned = [self._bounded(part) for part in wanted]
            if not planned:
                break
            self._add_batch(planned)
            count, reached = count + 1, planned == wanted
        return count

    def _plan(self) -> list[PlannedRange]:
        available = self._available()
        asked = last_archived(available, self._archived)
        refuse_older_copies(self._last_messages.differing(asked) if asked else (), self._archived)
        planned = plan(available, self._archived)
        if not self._arguments.accept_loss:
            refuse_losses(planned)
        return planned

    def _available(self) -> Mapping[TopicPartition, PartitionState]:
        chosen = [topic for topic in self._directory.topics() if is_chosen(topic, self._arguments)]
        known = {*chosen, *(where.topic for where in self._archived)}
        missing = {*(self._arguments.topics or "").split(",")} - {"", *known}
        if missing:
            raise ArchiveError(f"--topics: no broker knows {', '.join(sorted(missing))}")
        available = self._directory.available(chosen)
        for where in sorted(set(self._archived) - set(available)):
            if is_chosen(where.topic, self._arguments):
                print(f"archive_topics: {where} is not listed by any broker now; what came after "
                      f"offset {self._archived[where].end} is not archived", file=sys.stderr)  # fmt: skip
        return available

    def _bounded(self, part: PlannedRange) -> PlannedRange:
        """Limit a range to the bytes of a batch, cut at a message; a single longer message is taken whole."""
        limit = part.offsets.start + self._arguments.partition_bytes_max
        if part.loss is not None or part.offsets.end <= limit:
            return part
        topic, partition = part.where.topic, part.where.partition
        with self._pool.lease(self._directory.partitions(topic)[partition]) as session:
            cut = frame_boundary(session, topic, partition.index, limit, part.offsets.start)
        end = cut if part.offsets.start < cut < part.offsets.end else part.offsets.end
        return PlannedRange(part.where, part.incarnation, OffsetRange(part.offsets.start, end))

    def _add_batch(self, planned: Sequence[PlannedRange]) -> None:
        batch = self._next
        self._files.refuse_taken(batch)
        try:
            manifest = self._write_batch(batch, planned)
            self._files.add(batch, manifest)
        except Exception:
            if batch in self._files.numbers():  # another run was faster, and has removed files of this one
                self._remove_unnamed(self._files.read(batch))
                self._files.refuse_taken(batch)
            raise
        self._remove_unnamed(manifest)
        self._next, self._archived = batch + 1, self._archived | archived_after([manifest])
        messages = sum(entry["messages"] for entry in manifest["ranges"])
        self._report.rows_in += messages
        self._report.rows_out += messages
        print(f"batch {batch}: {messages} messages of {len(manifest['ranges'])} partitions")

    def _remove_unnamed(self, manifest: Manifest) -> None:
        """Remove from the folder of a batch the files of runs that failed, or came too late, before their manifest."""
        named = {name.partition("/")[0] for entry in manifest["ranges"] for name in entry["files"]}
        filesystem, folder = open_folder(f"{self._arguments.output}/data/batch={manifest['batch']:08}")
        for found in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            delete = filesystem.delete_dir if found.type == fs.FileType.Directory else filesystem.delete_file
            if found.base_name not in named:
                with suppress(OSError):  # a run that came too late still writes there; it removes them itself
                    delete(found.path)

    def _write_batch(self, batch: int, planned: Sequence[PlannedRange]) -> Manifest:
        ranges = [part for part in planned if part.loss is None]
        files: FilesOf = {}
        last: Mapping[TopicPartition, str] = {}
        if ranges:
            last = self._last_messages.before({part.where: part.offsets for part in ranges})
            folder = f"data/batch={batch:08}/{uuid.uuid4().hex}"
            options = read_options(ranges) | {"onCorrupt": "skip" if self._arguments.skip_damaged else "fail"}
            rows = self._spark.read.format("metaq").option("brokers", self._arguments.brokers).options(**options).load()
            rows.write.parquet(f"{spark_path(self._arguments.output)}/{folder}")
            files = measure(self._spark, self._arguments.output, folder).get(batch, {})
            self._refuse_new_incarnations(ranges)
        return make_manifest(batch, planned, files, self._arguments.skip_damaged, last)

    def _refuse_new_incarnations(self, ranges: Iterable[PlannedRange]) -> None:
        """Check that the planned incarnations are still the same, and so are the messages that were read."""
        available = self._directory.available({part.where.topic for part in ranges})
        for part in ranges:
            if part.where in available and available[part.where].incarnation != part.incarnation:
                raise ArchiveError(f"{part.where}: deleted and made anew while it was archived; run again")


def is_chosen(topic: str, arguments: argparse.Namespace) -> bool:
    if arguments.topics is not None:
        return topic in arguments.topics.split(",")
    return re.fullmatch(arguments.pattern, topic) is not None


def read_options(ranges: Iterable[PlannedRange]) -> dict[str, str]:
    """The connector's options for exactly these ranges."""
    assigned: dict[str, list[str]] = {}
    start: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for part in ranges:
        topic, partition = part.where.topic, str(part.where.partition)
        assigned.setdefault(topic, []).append(partition)
        start.setdefault(topic, {})[partition] = part.offsets.start
        end.setdefault(topic, {})[partition] = part.offsets.end
    values: Mapping[str, Any] = {"assign": assigned, "startingOffsets": start, "endingOffsets": end}
    return {name: json.dumps(value) for name, value in values.items()}


def verify(spark: SparkSession, output: str) -> list[str]:
    """What is wrong with an archive, a sentence each: its manifests by themselves, then its files against them.

    Raises:
        ArchiveError: There is no archive.
    """
    files = NumberedFiles(f"{output}/manifests")
    numbers, manifests = files.numbers(), read_manifests(files)
    if not numbers:
        raise ArchiveError(f"--output: there is no manifest in {files.folder}, so nothing is archived there")
    problems = list(check_chain(numbers, manifests))
    filesystem, root = open_folder(output)
    there = filesystem.get_file_info(f"{root}/data").type == fs.FileType.Directory
    measured = measure(spark, output) if there else {}
    for number, manifest in zip(numbers, manifests, strict=True):
        problems += check_contents(manifest, measured.get(number, {}))
        for entry in manifest["lost"]:
            offsets = OffsetRange(entry["start"], entry["end"])
            print(f"noted as lost: {entry['topic']}/{entry['partition']}, {span(offsets)}: {entry['why']}")
    problems += check_leftovers(numbers, measured)
    if numbers[-1] + 1 in measured:
        print(f"batch {numbers[-1] + 1} has files and no manifest: it is being written, or the next run replaces it")
    messages = sum(entry["messages"] for manifest in manifests for entry in manifest["ranges"])
    print(f"{len(manifests)} batches, {messages} messages, {len(problems)} problems")
    return problems


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Archive what is there; with ``--every-seconds`` again and again."""
    pause = threading.Event()
    with JobReport("archive_topics") as report:
        archive = Archive(spark, arguments, report)
        archive.catch_up()
        while arguments.every_seconds is not None:
            pause.wait(arguments.every_seconds)
            archive.catch_up()


def size(text: str) -> int:
    """A number of bytes of at least 1, alone or with a unit such as k or MB after it, for argparse."""
    with suppress(ValueError):
        if (total := parse_size(text)) > 0:
            return total
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of bytes of at least 1, such as 512k, 64m or 1g")


def seconds(text: str) -> int:
    """A whole number of seconds of at least 1, for argparse."""
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds of at least 1")
    return int(text)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Archive topics as Parquet, with manifests; or check an archive.")
    parser.add_argument("--output", required=True, help="folder or URI of the archive")
    parser.add_argument("--verify", action="store_true", help="check manifests and files instead; 1 = problems")
    parser.add_argument("--brokers", help="host:port of the brokers, separated by commas")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--topics", help="topics to archive, separated by commas")
    chosen.add_argument("--pattern", type=pattern, help="regular expression for whole names, also of future topics")
    parser.add_argument(
        "--partition-bytes-max", type=size, default="1g", help="bytes of each partition in a batch (default: 1g)"
    )
    parser.add_argument(
        "--accept-loss", action="store_true", help="record what the brokers deleted too early, and continue"
    )
    parser.add_argument("--skip-damaged", action="store_true", help="leave out and count damaged bytes, do not fail")
    parser.add_argument("--every-seconds", type=seconds, help="keep running, and poll for new messages this often")
    parsed = parser.parse_args(arguments)
    if not parsed.verify and (parsed.brokers is None or (parsed.topics is None and parsed.pattern is None)):
        parser.error("to archive, --brokers and one of --topics and --pattern are needed; to check, --verify")
    return parsed


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("archive_topics").getOrCreate()
    with exit_on_failure("archive_topics"):
        if not arguments.verify:
            run(spark, arguments)
        elif problems := verify(spark, arguments.output):
            sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
