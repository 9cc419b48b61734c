"""Tasks on the broker's machine hand over blocks in shared memory: the same messages, in both ways of delivery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from fix_broker import RunningBroker, StartBroker
from fix_client import TIMEOUTS, stored_messages
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from metaq.client.session import Session
from metaq.client.shared_memory import SharedMemory
from metaq.client.slots import BYTES_MAX
from metaq.model import Message
from metaq.wire.text.commands import Command, PutBatch, PutShared, Share
from metaq_spark.columns.blocks import OpenBlock
from metaq_spark.columns.engine import Engine
from metaq_spark.datasource import MetaQDataSource

pytestmark = pytest.mark.process

SCHEMA = StructType().add("value", BinaryType()).add("attribute", StringType()).add("partition", IntegerType())
PARTITIONS = 2
ROWS = 6000


@pytest.fixture(params=["compiled", "plain"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(0 if request.param == "compiled" else 1 << 40)
    monkeypatch.setattr("metaq_spark.columns.encode.shared_engine", lambda: engine)


def message(number: int) -> Message:
    return Message(b"%06d" % number * (100 + number % 100), None if number % 5 else f"type-{number % 3}")


def batches() -> Iterator[pa.RecordBatch]:
    """Rows for two partitions, a thousand at a time: about 5 MiB for each."""
    for first in range(0, ROWS, 1000):
        messages = [message(number) for number in range(first, first + 1000)]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([each.payload for each in messages], pa.binary()),
                pa.array([each.attribute for each in messages], pa.string()),
                pa.array([number % PARTITIONS for number in range(1000)], pa.int32()),
            ],
            names=SCHEMA.names,
        )


def write(broker: RunningBroker, **options: str) -> None:
    given = {"brokers": str(broker.address), "topic": "orders"} | options
    writer = MetaQDataSource(given).writer(SCHEMA, False)
    writer.commit([writer.write(batches())])


def stored(broker: RunningBroker, partition: int) -> list[Message]:
    with closing(Session.connect(broker.address, TIMEOUTS)) as session:
        return stored_messages(session, "orders", partition)


def kinds(posted: list[Command]) -> set[type]:
    return {type(command) for command in posted if isinstance(command, Share | PutShared | PutBatch)}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {Share, PutShared}),
        ({"localWrites": "false"}, {PutBatch}),
        ({"blockBytes": "256k"}, {Share, PutShared}),
        ({"blockBytes": "100k"}, {PutBatch}),
        ({"blockMessages": "70"}, {PutBatch}),
    ],
)
def test_every_message_once_and_in_order(
    dev_broker: RunningBroker, posted: list[Command], delivery: str, options: dict[str, str], sent: set[type]
) -> None:
    write(dev_broker, delivery=delivery, **options)
    wanted = [message(number) for number in range(ROWS)]
    for partition in range(PARTITIONS):
        assert stored(dev_broker, partition) == wanted[partition::PARTITIONS]
    assert kinds(posted) >= sent
    assert (PutShared in kinds(posted)) == (PutShared in sent)


def test_a_few_rows_are_sent(dev_broker: RunningBroker, posted: list[Command]) -> None:
    writer = MetaQDataSource({"brokers": str(dev_broker.address), "topic": "orders"}).writer(SCHEMA, False)
    writer.write(next(batches()).slice(0, 10) for _ in range(1))
    assert kinds(posted) == {PutBatch}


def test_a_failed_task_leaves_nothing_that_disturbs_the_next(dev_broker: RunningBroker) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from list(batches())[:5]
        raise RuntimeError("the plan before the sink failed")

    write(dev_broker)
    writer = MetaQDataSource({"brokers": str(dev_broker.address), "topic": "orders"}).writer(SCHEMA, False)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the plan before"):
            writer.write(broken())
    before = -1
    while before != (before := len(stored(dev_broker, 0))):
        time.sleep(0.3)  # what the failed tasks had told the broker of is carried out, if late
    write(dev_broker)
    wanted = [message(number) for number in range(ROWS)]
    assert stored(dev_broker, 0)[before:] == wanted[::PARTITIONS]


def test_a_broker_that_dies_in_the_middle(start_broker: StartBroker, tmp_path: Path, posted: list[Command]) -> None:
    """Blocks that were under way are sent to the next one, out of the memory that the dead one saw."""
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "2")

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal broker
        for turn in range(6):
            yield from batches()
            if turn in (1, 3):
                broker.kill()
                broker = start_broker("dev", tmp_path / "data", "--port", str(broker.address.port), "--partitions", "2")

    given = {"brokers": str(broker.address), "topic": "orders", "retries": "20", "retryIntervalMs": "100"}
    MetaQDataSource(given).writer(SCHEMA, False).write(rows())
    wanted = [message(number) for number in range(ROWS)]
    for partition in range(PARTITIONS):
        payloads = [each.payload for each in stored(broker, partition)]
        expected = [each.payload for each in wanted[partition::PARTITIONS]] * 6
        assert len(payloads) >= len(expected)
        assert _without_repeated_blocks(payloads, expected)
    assert kinds(posted) == {Share, PutShared, PutBatch}


def _without_repeated_blocks(payloads: list[bytes], expected: list[bytes]) -> bool:
    """Whether ``payloads`` is ``expected``, except that it goes back by some messages here and there."""
    at = 0
    for payload in payloads:
        if at < len(expected) and payload == expected[at]:
            at += 1
        else:
            back = at - 1
            while back >= 0 and expected[back] != payload:
                back -= 1
            if back < 0:
                return False
            at = back + 1
    return at == len(expected)


class TestOpenBlock:
    """Where the room of a block comes from."""

    def test_a_block_that_stays_small_takes_no_slot(self) -> None:
        memory = SharedMemory(1 << 20, 2)
        block = OpenBlock(1 << 20, 1000, memory.take)
        assert block.add(b"x" * 1000)
        assert block.take().slot is None
        assert memory.unused

    def test_one_that_grows_moves_into_a_slot(self) -> None:
        memory = SharedMemory(1 << 20, 2)
        block = OpenBlock(1 << 20, 10_000, memory.take)
        frames = [b"%05d" % number * 200 for number in range(1040)]
        assert all(map(block.add, frames))
        taken = block.take()
        assert taken.slot is not None
        assert bytes(taken.data) == b"".join(frames)
        assert bytes(taken.slot.view[: len(taken.data)]) == b"".join(frames)

    def test_without_a_free_slot_it_is_made_elsewhere(self) -> None:
        memory = SharedMemory(1 << 20, 1)
        blocks = [OpenBlock(1 << 20, 1000, memory.take) for _ in range(2)]
        for block in blocks:
            assert block.add(b"x" * (700 << 10))
        assert [block.take().slot is None for block in blocks] == [False, True]

    def test_a_frame_larger_than_a_block_is_one_of_its_own(self) -> None:
        memory = SharedMemory(BYTES_MAX // 4, 1)
        block = OpenBlock(1000, 1000, memory.take)
        assert block.add(b"x" * 5000)
        assert (block.take().slot, memory.unused) == (None, True)
