"""A queue that a consumer owns, without a broker: what it pulls, hands out, leaves out, and how far it is settled."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from metaq.backends.rocketmq.reads.pulls import Moved, NotYet, PulledRecords, Subscription
from metaq.client.groups.deliveries import HandedOut
from metaq.client.rocketmq.groups.deliveries import RocketDelivery
from metaq.client.rocketmq.groups.queue import OwnedQueue, Pull, QueueAnswer, QueueSettings
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import CorruptRecord
from metaq.formats.rocketmq.properties import write_properties
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.formats.rocketmq.sys_flags import COMPRESSED
from metaq.model import Partition, TopicPartition

WHERE = TopicPartition("orders", Partition("broker-a", 0))


class _Nobody:
    def acknowledge(self, delivery: HandedOut) -> None:
        raise AssertionError(delivery)


def owned(start: int = 0, where: TopicPartition = WHERE, **settings: object) -> OwnedQueue:
    return OwnedQueue(where, GroupOffset(start), 1, replace(QueueSettings(), **settings), _Nobody())  # type: ignore[arg-type]


def record(offset: int, body: bytes = b"x", **properties: str) -> bytes:
    return encode_record(Record("orders", 0, offset, body, write_properties(properties).encode()))


def found(*records: bytes, to: int, **more: int) -> QueueAnswer:
    return QueueAnswer(PulledRecords(to, memoryview(b"".join(records)), more.get("broker_id", 0), to), True)


def ask(queue: OwnedQueue, now_s: float = 0.0) -> Pull:
    pull = queue.request(now_s)
    assert pull is not None
    return pull


def feed(queue: OwnedQueue, *records: bytes, to: int) -> None:
    assert queue.fetched(ask(queue), found(*records, to=to), 0.0) is None


def take(queue: OwnedQueue, seen: frozenset[str] = frozenset()) -> RocketDelivery | None:
    return queue.take(0.0, seen.__contains__)


def offsets(queue: OwnedQueue) -> list[int]:
    taken = []
    while (delivery := take(queue)) is not None:
        taken.append(delivery.offset)
    return taken


def test_one_pull_is_under_way_and_the_next_one_goes_on_behind_it() -> None:
    queue = owned(5)
    pull = ask(queue)
    assert (pull.offset, queue.request(0.0), queue.next_request_s()) == (5, None, None)
    queue.fetched(pull, found(record(5), record(6), to=7), 0.0)
    assert ask(queue).offset == 7
    assert offsets(queue) == [5, 6]
    assert queue.position == GroupOffset(5)


def test_no_more_is_pulled_than_the_buffer_takes() -> None:
    queue = owned(buffer_bytes=1)
    feed(queue, record(0), to=1)
    assert queue.next_request_s() is None
    assert take(queue) is not None
    assert take(queue) is None
    assert queue.next_request_s() == 0.0


def test_what_a_filter_left_out_is_passed() -> None:
    queue = owned(subscription=Subscription("hot"))
    feed(queue, record(0, TAGS="hot"), record(1, TAGS="Aa"), to=9)  # the second one's hash may be that of another tag
    kept = take(queue)
    assert kept is not None
    assert (kept.offset, take(queue)) == (0, None)
    feed(queue, to=20)
    assert offsets(queue) == []
    assert queue.in_hand == 1
    assert queue.position == GroupOffset(0)
    assert queue.settle(kept)
    assert queue.position == GroupOffset(20)


def test_an_answer_for_what_was_rolled_back_is_dropped() -> None:
    queue = owned()
    feed(queue, record(0), record(1), to=2)
    first = take(queue)
    late = ask(queue)
    assert first is not None
    assert queue.roll_back(10.0, lambda failures: 2.0 * failures) == 1
    queue.fetched(late, found(record(2), to=3), 10.0)
    assert (take(queue), queue.request(11.0)) == (None, None)
    pull = ask(queue, 12.0)
    assert pull.offset == 0
    queue.fetched(pull, found(record(0), to=1), 12.0)
    again = take(queue)
    assert again is not None
    assert (again.offset, again.attempt, queue.settle(first)) == (0, 2, False)


def test_a_broker_that_does_not_wait_is_not_asked_at_once() -> None:
    queue = owned(poll_max_s=1.0)
    queue.fetched(ask(queue, 1.0), QueueAnswer(NotYet(0, "", 0), True), 1.1)
    assert queue.next_request_s() == pytest.approx(1.2)
    queue.fetched(ask(queue, 1.25), QueueAnswer(NotYet(0, "", 0), True), 16.2)  # this one did wait
    assert queue.request(16.2) is not None


def test_a_failure_waits_longer_each_time_and_asks_the_master() -> None:
    queue = owned(poll_max_s=1.0)
    queue.fetched(ask(queue), found(to=3, broker_id=1), 0.0)
    pull = ask(queue)
    assert pull.broker_id == 1
    queue.fetched(pull, None, 0.0)
    assert queue.next_request_s() == pytest.approx(0.1)
    pull = ask(queue, 0.1)
    assert pull.broker_id == 0
    queue.fetched(pull, None, 0.1)
    assert queue.next_request_s() == pytest.approx(0.3)


def test_an_offset_that_is_gone_leads_on_behind_what_was_pulled_before() -> None:
    queue = owned()
    feed(queue, record(0), to=1)
    jump = queue.fetched(ask(queue), QueueAnswer(Moved(7, 9), True), 0.0)
    assert jump is not None
    assert (jump.asked, jump.to) == (1, 7)
    feed(queue, record(7), to=8)
    assert offsets(queue) == [0, 7]


def test_only_the_master_knows_that_a_queue_ends_before_the_position() -> None:
    queue = owned(9)
    assert queue.fetched(ask(queue), QueueAnswer(Moved(1, 4), False), 0.0) is None  # a slave that is behind
    jump = queue.fetched(ask(queue, 1.0), QueueAnswer(Moved(1, 4), True), 1.0)
    assert jump is not None
    assert jump.to == 4
    assert take(queue) is None
    assert queue.position == GroupOffset(4)


def test_a_queue_that_is_shorter_and_has_its_first_message_is_another_one() -> None:
    """As RocketMQ's brokers decide: nobody has read it, its broker came back empty."""
    queue = owned(9)
    jump = queue.fetched(ask(queue), QueueAnswer(Moved(0, 4), True), 0.0)
    assert jump is not None
    assert jump.to == 0
    feed(queue, record(0), to=1)
    assert offsets(queue) == [0]
    assert queue.position == GroupOffset(0)


def test_damage_is_raised_each_time_or_skipped() -> None:
    damaged = bytearray(record(1, b"body"))
    damaged[damaged.index(b"body")] ^= 1
    queue = owned()
    feed(queue, record(0), bytes(damaged), record(2), to=3)
    assert take(queue) is not None
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="orders/broker-a:0 at offset 1 or later"):
            take(queue)
    queue = owned(skip_corrupt=True)
    feed(queue, record(0), bytes(damaged), record(2), to=3)
    assert offsets(queue) == [0, 2]


def test_bodies_are_decompressed_and_seen_messages_left_out() -> None:
    queue = owned()
    packed = encode_record(Record("orders", 0, 0, zlib.compress(b"tea"), b"", sys_flag=COMPRESSED))
    feed(queue, packed, record(1, UNIQ_KEY="seen"), record(2, UNIQ_KEY="new"), to=3)
    first = take(queue, frozenset({"seen"}))
    assert first is not None
    assert first.data == b"tea"
    second = take(queue, frozenset({"seen"}))
    assert second is not None
    assert second.message_id == "new"


def test_a_message_that_comes_again_has_its_first_topic() -> None:
    where = TopicPartition("%RETRY%g", Partition("broker-a", 0))
    queue = owned(where=where, namespace="ns")
    feed(queue, record(0, RETRY_TOPIC="ns%orders"), to=1)
    delivery = take(queue)
    assert delivery is not None
    assert (delivery.topic, delivery.where, delivery.again().attempt) == ("orders", where, 2)
