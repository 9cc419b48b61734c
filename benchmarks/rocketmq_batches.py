"""The ceiling of a write to RocketMQ: batches that are made before the clock starts, sent as fast as they are stored.

No Spark and no encoding: a thread for each queue with a connection of its own, several batches under way on each. What
takes the time is the broker, and the network between.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa
from figures import seconds

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory, parse_name_servers
from metaq.model import Partition
from metaq_spark.columns.blocks import Block, OpenBlock
from metaq_spark.columns.rocketmq.encode import ElementEncoder, RowColumns
from metaq_spark.columns.rocketmq.unique_keys import key_prefix

BATCH_BYTES: Final = 1 << 20
UNDER_WAY: Final = 4


def batches(rows: pa.Table, queues: int) -> list[list[Block]]:
    """The rows, with columns ``value``, ``tags`` and ``keys``, as batches: an equal part for each of the queues."""
    share = -(-len(rows) // queues)
    return [_made(rows.slice(first, share).combine_chunks()) for first in range(0, len(rows), share)]


def send_s(name_servers: str, topic: str, made: Sequence[Sequence[Block]]) -> float:
    """Seconds until the broker has stored all batches, those of a queue over one connection."""
    with closing(SessionPool()) as pool:
        directory = NameServerDirectory(parse_name_servers(name_servers), pool)
        places = directory.writable(topic)
        failed: list[BaseException] = []

        def send(place: Partition, blocks: Sequence[Block]) -> None:
            writer = BatchWriter(
                pool, directory, place.broker_name, batches_max=UNDER_WAY, in_order=False, receipts=False
            )
            try:
                with closing(writer):
                    for block in blocks:
                        writer.write(topic, place.index, block.data, block.count)
                    writer.flush()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=send, args=pair) for pair in zip(places, made, strict=True)]

        def run() -> None:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        taken = seconds(run)
        if failed:
            raise failed[0]
        return taken


def _made(rows: pa.Table) -> list[Block]:
    [batch] = rows.to_batches()
    columns = RowColumns(*(batch.column(name) for name in ("value", "tags", "keys")))
    encoder = ElementEncoder(columns, key_prefix(uuid.uuid4().hex, 0, 0), 0, "a benchmark")
    block = OpenBlock(BATCH_BYTES, len(batch))
    made = list(encoder.append(np.arange(len(batch)), block))
    return [*made, block.take()] if block.count else made
