"""``metaq-spark compile``: compiles all loops in ``kernels`` in advance, so that no query has to.

numba compiles a function at its first call, for its argument types, and caches the machine code on disk. So each loop
is called once on one or two messages, with the same array types as in ``decode`` and ``encode``.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType

from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.native_crc import crc32_address
from metaq.formats.stored_records import FrameRun
from metaq.model import Message, Partition, TopicPartition
from metaq_spark.columns.blocks import OpenBlock
from metaq_spark.columns.decode import RunDecoder
from metaq_spark.columns.encode import VariableColumn, hash_keys
from metaq_spark.columns.engine import ColumnEngine, numba_kernels


@dataclass(frozen=True, slots=True)
class Compiled:
    """The folder of the machine code (empty if none is writable), and the numbers of loops.

    ``made`` loops were compiled, ``found`` ones were cached already.
    """

    folder: str
    made: int
    found: int
    seconds: float


def compile_kernels() -> Compiled | None:
    """Compile or load every loop; ``None`` where numba cannot be used."""
    start = time.perf_counter()
    kernels = numba_kernels()
    if kernels is None:
        return None
    _decode(kernels)
    _encode(kernels)
    _records_and_elements()
    from metaq_spark.columns.rocketmq import element_kernels, frame_kernels, record_kernels

    modules = kernels, record_kernels, frame_kernels, element_kernels
    loops = {id(loop): loop for module in modules for loop in vars(module).values()}
    statistics = [loop.stats for loop in loops.values() if getattr(loop, "stats", None) and loop.signatures]
    kept = [each for each in statistics if each.cache_path]
    return Compiled(
        folder=kept[0].cache_path if kept else "",
        made=sum(sum(each.cache_misses.values()) for each in kept),
        found=sum(sum(each.cache_hits.values()) for each in kept),
        seconds=time.perf_counter() - start,
    )


def _decode(kernels: ModuleType) -> None:
    run = b"".join(encode_frame(1, *encode_body(Message(b"payload", attribute))) for attribute in (None, "type"))
    decoder = RunDecoder(TopicPartition("t", Partition(0, 0)), engine=ColumnEngine(0))
    rows = sum(batch.num_rows for batch in (*decoder.decode(run, 0), *decoder.flush()))
    assert rows == 2


def _encode(kernels: ModuleType) -> None:
    column = VariableColumn.of(pa.array([b"payload"]))
    for attribute in (VariableColumn.of_nulls, lambda: VariableColumn.of(pa.array(["type"]))):
        _encode_one(kernels, column, attribute())
    hash_keys(pa.array([b"key"]), ColumnEngine(0))


def _encode_one(kernels: ModuleType, value: VariableColumn, attribute: Any) -> None:
    state, rows = np.zeros(kernels.STATE_SIZE, dtype=np.int64), np.zeros(1, dtype=np.int64)
    status = kernels.encode_frames(
        rows, crc32_address(), kernels.CRC_TABLES, state, value.ends, value.data,
        attribute.present, attribute.ends, attribute.data, np.empty(100, dtype=np.uint8),
    )  # fmt: skip
    assert status == kernels.DONE


def _records_and_elements() -> None:
    from metaq_spark.columns.rocketmq import frame_kernels, record_kernels
    from metaq_spark.columns.rocketmq.batches import RAW_TYPES, RecordBatchMaker
    from metaq_spark.columns.rocketmq.checks import ExpectedQueue
    from metaq_spark.columns.rocketmq.decode import CompiledRecordDecoder
    from metaq_spark.columns.rocketmq.encode import ElementEncoder, RowColumns

    maker = RecordBatchMaker(TopicPartition("t", Partition("b", 0)), pa.schema(list(RAW_TYPES.items())), BinaryType())
    decoder = CompiledRecordDecoder(ExpectedQueue(b"t", 0, dense=False), maker, 1, 1)
    assert list(decoder.decode(b"", 0, 1, lambda *_: None)) == []
    assert list(decoder.decode_frames(FrameRun(0, 0, b"", 0, 0, bytes(8)))) == []
    nothing = np.zeros(0, dtype=np.uint8)
    nothing.flags.writeable = False
    assert frame_kernels.measure_frames(nothing, 1) == (0, 0)
    assert record_kernels.measure_records(nothing, nothing, 0, 0, 1)[2] == 0
    encoder = ElementEncoder(RowColumns(pa.array([b"payload"])), b"0" * 20, 0, "", ColumnEngine(0))
    block = OpenBlock(100, 1)
    assert list(encoder.append(np.zeros(1, dtype=np.int64), block)) == []
    assert block.count == 1


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Fill the parser of ``metaq-spark compile``, which has no arguments."""
    command.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    done = compile_kernels()
    if done is None:
        sys.stderr.write("metaq-spark: numba cannot be used; messages are handled in plain Python\n")
        return 1
    place = f"kept in {done.folder}" if done.folder else "not kept: no folder can be written"
    print(f"Compiled {done.made} loops, found {done.found} compiled, in {done.seconds:.1f} s; {place}")
    return 0 if done.folder else 1
