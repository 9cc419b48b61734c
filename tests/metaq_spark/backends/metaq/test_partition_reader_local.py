"""Tasks on the broker's machine read its files: the same rows, the same checks, the same consequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_client import TIMEOUTS

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.errors import CorruptFrame
from metaq.model import Message, OffsetRange, Partition, TopicPartition
from metaq.protocols.text.commands import Stats
from metaq_spark.backends.metaq.options import SourceOptions, parse_source_options
from metaq_spark.backends.metaq.partition_reader import RangePartition, read_partition
from metaq_spark.options.table import Use

pytestmark = pytest.mark.process

SOURCE = TopicPartition("orders", Partition(0, 0))
BODY_BYTES = 30_000
PAYLOADS = [bytes([number]) * BODY_BYTES for number in range(60)]
FRAME_BYTES = BODY_BYTES + 20
END = len(PAYLOADS) * FRAME_BYTES

Read = Callable[..., list[bytes]]


@pytest.fixture
def read(dev_broker: RunningBroker) -> Iterator[Read]:
    with closing(Session.connect(dev_broker.address, TIMEOUTS)) as session:
        put_batch(session, "orders", 0, *encode_block(list(map(Message, PAYLOADS))))

    def read(**options: str) -> list[bytes]:
        task = RangePartition(SOURCE, dev_broker.address, OffsetRange(0, END))
        batches = read_partition(task, given(dev_broker, **options), pool)
        return [value for batch in batches for value in batch["value"].to_pylist()]

    with closing(SessionPool(TIMEOUTS)) as pool:
        yield read


def given(broker: RunningBroker, **options: str) -> SourceOptions:
    return parse_source_options({"brokers": str(broker.address), "subscribe": "orders"} | options, Use.BATCH_READ)


def gets(broker: RunningBroker) -> int:
    with closing(Session.connect(broker.address, TIMEOUTS)) as session:
        return int(session.ask(Stats("", 0)).partition("cmd_get ")[2].split()[0])


def flip(broker: RunningBroker, number: int) -> None:
    """Change a byte of a message's payload on the disk."""
    (segment,) = (Path(broker.data) / "orders-0").glob("*.meta")
    with open(segment, "r+b") as file:
        file.seek(number * FRAME_BYTES + 20)
        file.write(b"\xff")


def test_nothing_is_fetched_unless_that_is_wanted(dev_broker: RunningBroker, read: Read) -> None:
    assert read() == PAYLOADS
    assert gets(dev_broker) == 0
    assert read(localReads="false") == PAYLOADS
    assert gets(dev_broker) > 0


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_damaged_message_fails_the_read(dev_broker: RunningBroker, read: Read, local: str) -> None:
    flip(dev_broker, 7)
    # Plain and compiled loops word it differently; which of them runs depends on what the process has read before.
    reason = "(checksum 0x|the checksum does not match the body)"
    with pytest.raises(CorruptFrame, match=rf"orders/0-0 at offset {7 * FRAME_BYTES}: {reason}"):
        read(localReads=local)


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_damaged_message_costs_one_message(
    dev_broker: RunningBroker, read: Read, local: str, caplog: pytest.LogCaptureFixture
) -> None:
    flip(dev_broker, 7)
    with caplog.at_level(logging.WARNING):
        assert read(localReads=local, onCorrupt="skip") == PAYLOADS[:7] + PAYLOADS[8:]
    assert str(7 * FRAME_BYTES) in caplog.text
