"""Reads of single partitions: offsets, times, counts, messages."""

from __future__ import annotations

import pytest

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import put
from metaq.client.topic_reader import TopicReader
from metaq.errors import OffsetMoved
from metaq.formats.frames import PassedFrames
from metaq.model import Address, Message, OffsetRange, Partition
from metaq.testing.broker_process import BrokerProcess
from metaq.testing.memory import MemoryBroker, MemoryTransport

pytestmark = pytest.mark.process
WHERE = Partition(0, 0)
ADDRESS = Address("127.0.0.1", 8123)


@pytest.fixture
def reader(metaq_broker: BrokerProcess) -> TopicReader:
    mq = metaq_broker.client()
    mq.producer().send_many("orders", [f"order {number}" for number in range(10)])
    view = mq.cluster
    return view.reader("orders")


def test_it_finds_what_is_stored(reader: TopicReader) -> None:
    assert list(reader.partitions) == [WHERE]
    assert reader.stored(WHERE) == OffsetRange(0, 270)
    assert reader.newest(WHERE, 3) == 27 * 7
    assert reader.newest(WHERE, 100) == 0
    assert reader.at_time(WHERE, 0) == 0


@pytest.mark.parametrize("is_bulk", [False, True])
def test_it_reads_from_a_boundary_to_an_end(reader: TopicReader, is_bulk: bool) -> None:
    found = [message.data for message in reader.read(WHERE, 54, 108, is_bulk=is_bulk)]
    assert found == [b"order 2", b"order 3"]
    assert list(reader.read(WHERE, 270, 270)) == []


def test_a_read_that_stops_early_keeps_its_connection(metaq_broker: BrokerProcess) -> None:
    mq = metaq_broker.client()
    mq.producer().send_many("orders", [f"order {number}" for number in range(10)])
    view = mq.cluster
    reader, opened = view.reader("orders"), view.connections
    for _ in range(5):
        found = reader.read(WHERE, 0, 270)
        assert next(found).data == b"order 0"
        found.close()
    assert view.connections == opened


def test_it_passes_what_cannot_match(reader: TopicReader) -> None:
    found = list(reader.search(WHERE, 27, 270, [b"order 3", b"order 7"]))
    assert [one.data for one in found if not isinstance(one, PassedFrames)] == [b"order 3", b"order 7"]
    assert [(one.end, one.frames) for one in found if isinstance(one, PassedFrames)] == [(81, 2), (189, 3), (270, 2)]
    assert list(reader.search(WHERE, 270, 270, [b"order"])) == []
    assert [one.end for one in reader.search(WHERE, 27, 270, [b"order 3"], 4)] == [81, 108, 135]


def test_an_offset_inside_a_message_is_refused(reader: TopicReader) -> None:
    reader.require_boundary(WHERE, 54)
    reader.require_boundary(WHERE, 270)
    with pytest.raises(ValueError, match="orders/0-0: no message begins at offset 60; one begins at 54"):
        reader.require_boundary(WHERE, 60)


def test_an_offset_outside_of_what_is_stored_says_where_to_go_on(reader: TopicReader) -> None:
    stored = reader.stored(WHERE)
    assert (reader.start(WHERE), reader.end(WHERE)) == (stored.start, stored.end) == (0, 270)
    for offset, to in ((-1, stored.start), (stored.end + 1, stored.end)):
        with pytest.raises(OffsetMoved) as moved:
            reader.require_boundary(WHERE, offset)
        assert moved.value.to == to


@pytest.mark.parametrize("size", [10, 5000, 100_000])
def test_a_java_broker_is_searched_from_its_end(size: int) -> None:
    broker = MemoryBroker({"orders": 1}, extensions=frozenset())
    pool = SessionPool(transport=MemoryTransport({ADDRESS: broker}))
    with pool.lease(ADDRESS) as session:
        receipts = [put(session, "orders", 0, Message(b"%d" % number + b"x" * size)) for number in range(20)]
    reader = TopicReader(pool, "orders", {WHERE: ADDRESS})
    assert reader.newest(WHERE, 3) == receipts[-3].offset
    assert reader.newest(WHERE, 100) == 0
    end = reader.stored(WHERE).end
    assert len(list(reader.read(WHERE, receipts[-3].offset, end))) == 3
