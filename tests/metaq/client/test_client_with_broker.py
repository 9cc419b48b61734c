"""The client against a real broker process, including one that is killed in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from fix_broker import RunningBroker
from fix_client import TIMEOUTS, Restarts
from forked import in_child

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.client.consumer import Consumer, first_at_time, frame_boundary, read_range
from metaq.client.producer import Producer, encode_block, put, put_batch
from metaq.discovery.fixed import FixedDirectory
from metaq.formats.frames import Frame, walk
from metaq.model import Message, OffsetRange, Partition
from metaq.net.retry import RetryPolicy
from metaq.protocols.text.commands import Version

pytestmark = pytest.mark.process

SIZES = [0, 1, 19, 20, 21, 4096, 65_535, 65_536, 1_000_000, (1 << 20) - 20, 1 << 20, 3_000_000, 5]


def payload(number: int, size: int) -> bytes:
    return bytes([number % 256]) * size


def frames_of(session: Session, end: int, start: int = 0, fetch_bytes: int = 1 << 20) -> list[Frame]:
    runs = read_range(session, "t", 0, OffsetRange(start, end), fetch_bytes)
    return [frame for run in runs for frame in walk(run.data, run.offset)]


@pytest.fixture
def session(dev_broker: RunningBroker) -> Iterator[Session]:
    with closing(Session.connect(dev_broker.address, TIMEOUTS)) as session:
        yield session


def as_to_java(session: Session) -> None:
    """Make this and every later connection of the session look like one to a Java broker."""
    connect = session._open

    def open_plain() -> None:
        connect()
        session._extensions = frozenset()

    session._open = open_plain  # type: ignore[method-assign]
    session._extensions = frozenset()


# ---- put and get


@pytest.mark.parametrize("fetch_bytes", [50_000, 1 << 20, 8 << 20])
def test_messages_of_all_sizes_come_back(session: Session, fetch_bytes: int) -> None:
    sent = [Message(payload(number, size), "type" if number % 2 else None) for number, size in enumerate(SIZES)]
    receipts = [put(session, "t", 0, message) for message in sent]
    frames = frames_of(session, receipts[-1].offset + 1, fetch_bytes=fetch_bytes)
    assert [frame.message for frame in frames] == sent
    assert [(frame.message_id, frame.offset) for frame in frames] == [(r.message_id, r.offset) for r in receipts]


def test_a_block_and_its_parts_are_the_same_messages(session: Session) -> None:
    messages = [Message(payload(number, number * 37), "x" if number % 3 else None) for number in range(200)]
    block, count = encode_block(messages)
    first = put_batch(session, "t", 0, block, count)
    as_to_java(session)
    second = put_batch(session, "t", 0, block, count)
    assert (first.offset, second.offset) == (0, len(block))
    assert [frame.message for frame in frames_of(session, 2 * len(block))] == messages * 2


def test_a_range_over_many_segments_and_capped_replies(restarts: Restarts) -> None:
    with closing(restarts.connect()) as session:
        writer = BatchWriter(session, "t")
        for number in range(60):
            writer.write(0, *encode_block([Message(payload(number, 900 + number)) for _ in range(20)]))
        receipts = writer.flush()
        frames = frames_of(session, receipts[-1].offset + 1)
        assert len(list((restarts.running.data / "t-0").glob("*.meta"))) > 5
    assert [frame.body for frame in frames[::20]] == [payload(number, 900 + number) for number in range(60)]
    assert len(frames) == 59 * 20 + 1


def test_boundaries_and_times_with_the_index_and_by_walking(session: Session) -> None:
    sizes = [0, 10, 100_000, 5, 5, 300_000, 7] * 3
    offsets = [put(session, "t", 0, Message(payload(0, size))).offset for size in sizes]
    end = offsets[-1] + 27
    asked = [*(offset + delta for offset in offsets for delta in (0, 1, 19)), end - 1, end, end + 5]
    wanted = [max(boundary for boundary in [*offsets, end] if boundary <= offset) for offset in asked]
    assert [frame_boundary(session, "t", 0, offset) for offset in asked] == wanted
    assert first_at_time(session, "t", 0, 0) == 0
    assert first_at_time(session, "t", 0, 1 << 45) == end
    as_to_java(session)
    assert [frame_boundary(session, "t", 0, offset) for offset in asked] == wanted
    assert [frame_boundary(session, "t", 0, offset, floor=offsets[3]) for offset in asked[9:]] == wanted[9:]


def test_a_script_sends_and_reads_without_knowing_a_partition(dev_broker: RunningBroker) -> None:
    with closing(SessionPool(TIMEOUTS)) as pool:
        directory = FixedDirectory([dev_broker.address], pool)
        producer = Producer(directory, pool)
        for number in range(10):
            producer.put("orders", Message(b"%d" % number))
        consumer = Consumer(directory, pool)
        received = [
            frame.message.payload
            for partition in directory.partitions("orders")
            for frame in consumer.messages("orders", partition)
        ]
        assert sorted(received) == [b"%d" % number for number in range(10)]
        assert list(directory.partitions("orders")) == [Partition(0, 0), Partition(0, 1)]


def test_a_worker_forked_from_a_process_with_connections_reads_on_its_own(dev_broker: RunningBroker) -> None:
    pool = SessionPool(TIMEOUTS)
    with pool.lease(dev_broker.address) as session:
        offset = put(session, "t", 0, Message(b"before the fork")).offset

    def read_in_child() -> bool:
        with pool.lease(dev_broker.address) as own:
            return own is not session and frames_of(own, offset + 1)[0].body == b"before the fork"

    assert in_child(read_in_child)
    with pool.lease(dev_broker.address) as again:
        assert again is session
        assert again.ask(Version(0))
    pool.close()


# ---- kill -9


def in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_range_is_read_over_two_kills_of_the_broker(restarts: Restarts) -> None:
    messages = [Message(payload(number, 400)) for number in range(2000)]
    with closing(restarts.connect()) as session:
        block, count = encode_block(messages)
        put_batch(session, "t", 0, block, count)
        seen: list[Frame] = []
        runs = read_range(session, "t", 0, OffsetRange(0, len(block)), 40_000, retries=20, retry_interval_s=0.1)
        for number, run in enumerate(runs):
            seen += walk(run.data, run.offset)
            if number in (3, 9):
                restarts.kill_and_start()
    assert [frame.message for frame in seen] == messages
    assert [frame.offset for frame in seen] == [number * 420 for number in range(2000)]


@pytest.mark.parametrize("java", [False, True])
def test_nothing_acknowledged_is_lost_and_order_is_kept_over_kills(restarts: Restarts, java: bool) -> None:
    blocks_written, per_block = (30, 10) if java else (300, 50)
    with closing(restarts.connect()) as session:
        if java:
            as_to_java(session)
        writer = BatchWriter(session, "t", policy=RetryPolicy(20, 0.1))
        killers: list[threading.Thread] = []
        receipts = []
        for number in range(blocks_written):
            names = [b"%d" % (number * per_block + at) for at in range(per_block)]
            writer.write(0, *encode_block([Message(name + b"," + bytes(100)) for name in names]))
            if number % (blocks_written // 3) == 5:
                for killer in killers:
                    killer.join()
                killers.append(in_thread(restarts.kill_and_start))
            if number % 40 == 39:
                receipts += writer.flush()
        receipts += writer.flush()
        for killer in killers:
            killer.join()
        session.reopen()
        frames = frames_of(session, frame_boundary(session, "t", 0, 1 << 40))
    numbers = [int(frame.body.partition(b",")[0]) for frame in frames]
    assert list(dict.fromkeys(numbers)) == list(range(blocks_written * per_block))
    by_offset = {frame.offset: (frame.message_id, number) for frame, number in zip(frames, numbers, strict=True)}
    assert [by_offset[receipt.offset] for receipt in receipts] == [
        (receipt.message_id, number * per_block) for number, receipt in enumerate(receipts)
    ]
    assert len(killers) == 3
