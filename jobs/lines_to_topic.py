"""Send the lines of text files to a topic, byte for byte.

    spark-submit --properties-file spark-conf/spark-defaults.conf jobs/lines_to_topic.py \\
        --brokers 127.0.0.1:8123 --topic lines /var/log/app.log

With ``--rocketmq NAME_SERVERS`` instead of ``--brokers`` the topic is RocketMQ's, and its queues are its partitions.

A message is a line *with* its line end, so the messages of a file, joined, are the file: CR LF, blank lines, bytes that
are no UTF-8 and a last line without an end are all preserved. The input is a file, or a folder (all files in and below
it, in the order of their paths), local or at a URI that pyarrow opens (``s3://``, ``hdfs://``, ``gs://``); every
executor must see it.

The input is cut into blocks, which are distributed over the topic's partitions in turn. One task writes one partition,
so the lines of a partition are in the order of the files; there is no order between partitions. A line belongs to the
block with its first byte.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.rocketmq.pool import SessionPool as RocketMQPool
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.errors import TopicNotFound
from metaq.model import Address
from metaq.sizes import parse_size

if TYPE_CHECKING:
    from job_report import JobReport

BLOCK_BYTES = 1 << 20
BLOCK_SCHEMA = "partition int, sequence long, path string, start long, end long"
LINE_SCHEMA = "partition int, value binary"


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes ``[start, end)`` of a file, for one partition of the topic; ``sequence`` counts through the whole input."""

    partition: int
    sequence: int
    path: str
    start: int
    end: int


def list_files(source: str) -> list[tuple[str, int]]:
    """Return path (a URI or a local path) and size in bytes of every file of ``source``, in the order of their paths.

    Raises:
        FileNotFoundError: There is nothing at ``source``, or the folder has no file.
    """
    filesystem, root = open_filesystem(source)
    info = filesystem.get_file_info(root)
    found = (
        [info]
        if info.is_file
        else filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    )
    scheme = f"{source.split('://')[0]}://" if "://" in source else ""
    files = sorted((scheme + file.path, file.size) for file in found if file.is_file)
    if not files:
        raise FileNotFoundError(f"{source}: no such file, or a folder without files")
    return files


def open_filesystem(source: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of ``source`` and the path within it."""
    filesystem, path = fs.FileSystem.from_uri(source if "://" in source else os.path.abspath(source))
    return filesystem, str(path)


def deal(files: Iterable[tuple[str, int]], partitions: int, block_bytes: int = BLOCK_BYTES) -> list[Block]:
    """Cut the files into blocks and distribute them over the partitions 0 .. ``partitions`` - 1 in turn."""
    blocks: list[Block] = []
    for path, size in files:
        for start in range(0, size, block_bytes):
            number = len(blocks)
            blocks.append(Block(number % partitions, number, path, start, min(start + block_bytes, size)))
    return blocks


def lines_of(stream: BinaryIO, start: int, end: int) -> list[bytes]:
    """Return the lines whose first byte is in ``[start, end)``, with their line ends."""
    position = start
    if start:
        stream.seek(start - 1)
        position += len(stream.readline()) - 1
    lines = []
    while position < end and (line := stream.readline()):
        lines.append(line)
        position += len(line)
    return lines


def read_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert rows of ``BLOCK_SCHEMA`` to rows of ``LINE_SCHEMA``, a batch for each block. Runs in the tasks."""
    for batch in batches:
        for row in batch.to_pylist():
            filesystem, path = open_filesystem(row["path"])
            with io.BufferedReader(filesystem.open_input_file(path)) as stream:
                lines = lines_of(stream, row["start"], row["end"])
            numbers = pa.repeat(pa.scalar(row["partition"], pa.int32()), len(lines))
            yield pa.record_batch({"partition": numbers, "value": pa.array(lines, pa.binary())})


def transform(blocks: DataFrame, partitions: int) -> DataFrame:
    """Convert blocks to lines: the blocks of a partition in one task, in order."""
    by_partition = blocks.repartitionByRange(partitions, "partition").sortWithinPartitions("partition", "sequence")
    return by_partition.mapInArrow(read_blocks, LINE_SCHEMA)


def count_partitions(brokers: str, topic: str) -> int:
    """Return how many partitions of the topic can be written to.

    Raises:
        ValueError: ``brokers`` is not host:port, separated by commas.
        MetaqError: A broker cannot be reached, or none accepts the topic.
    """
    addresses = [Address.parse(broker) for broker in brokers.split(",")]
    return len(FixedDirectory(addresses, shared_pool()).writable(topic))


def count_queues(name_servers: str, topic: str) -> int:
    """Return how many queues of a RocketMQ topic can be written to.

    Raises:
        ValueError: ``name_servers`` is not host:port, separated by semicolons.
        MetaqError: No name server can be reached, or none has the topic.
    """
    with closing(RocketMQPool()) as pool:
        queues = NameServerDirectory(parse_name_servers(name_servers), pool).writable(topic)
    if not queues:
        raise TopicNotFound(topic, [name_servers], [])
    return len(queues)


def run(spark: SparkSession, arguments: argparse.Namespace, report: JobReport | None = None) -> None:
    """Read and send everything; ``report`` counts it."""
    from job_arguments import queue_system  # imported here: the tasks import this module

    system, options = queue_system(arguments)
    if system == "rocketmq":
        partitions, number = count_queues(arguments.rocketmq, arguments.topic), "queue"
    else:
        partitions, number = count_partitions(arguments.brokers, arguments.topic), "partition"
    blocks = deal(list_files(arguments.input), partitions, arguments.block_bytes)
    lines = transform(spark.createDataFrame([astuple(block) for block in blocks], BLOCK_SCHEMA), partitions)

    def send(rows: DataFrame) -> None:
        sending = rows.withColumnRenamed("partition", number).write.format(system).mode("append")
        sending.options(**options).option("topic", arguments.topic).save()

    if report is None:
        send(lines)
    else:
        report.write(lines, lambda rows: rows, send)


def bytes_of_a_block(text: str) -> int:
    """Parse a number of bytes of at least 1, with an optional unit such as k or MB, for argparse."""
    with suppress(ValueError):
        if (total := parse_size(text)) > 0:
            return total
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of bytes of at least 1, such as 512k or 1 MB")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    from job_arguments import add_source

    parser = argparse.ArgumentParser(description="Send the lines of text files to a topic, byte for byte.")
    parser.add_argument("input", help="a file or a folder: a local path or a URI")
    add_source(parser)
    parser.add_argument("--topic", required=True, help="the topic to send to")
    parser.add_argument(
        "--block-bytes", type=bytes_of_a_block, default=BLOCK_BYTES, help="bytes dealt at once (%(default)s)"
    )
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    spark = SparkSession.builder.appName("lines_to_topic").getOrCreate()
    from job_failures import exit_on_failure  # imported here: the tasks import this module
    from job_report import JobReport

    with exit_on_failure("lines_to_topic"), JobReport("lines_to_topic") as report:
        run(spark, arguments, report)


if __name__ == "__main__":
    main()
