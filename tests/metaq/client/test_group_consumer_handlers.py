"""``GroupConsumer.run`` on brokers in memory: handlers that raise or hang, workers, rejected messages."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_client import P0, Setting, end_of

from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.parking import ParkedMessages
from metaq.client.records import Received
from metaq.errors import StoreFailed
from metaq.formats.frames import walk
from metaq.model import Message, Partition


def run_until(consumer: GroupConsumer, handler: Callable[[Delivery], object], count: int, workers: int = 1) -> None:
    """Run ``handler`` until it has returned ``count`` times."""
    done = threading.Semaphore(0)

    def counted(message: Delivery) -> None:
        handler(message)
        done.release()

    def stop() -> None:
        for _ in range(count):
            if not done.acquire(timeout=60):
                break
        consumer.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    consumer.run(counted, workers)
    stopper.join()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_handler_that_raises_gets_the_message_again_before_anything_else(setting: Setting, workers: int) -> None:
    setting.send("a", "bad", "c")
    seen: list[tuple[str, int]] = []

    def handler(message: Delivery) -> None:
        seen.append((message.data.decode(), message.attempt))
        if message.data == b"bad" and message.attempt < 3:
            raise ArithmeticError

    with setting.consumer() as consumer:
        run_until(consumer, handler, 3, workers)
    assert seen == [("a", 1), ("bad", 1), ("bad", 2), ("bad", 3), ("c", 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_message_that_no_attempt_helps_is_parked_and_replayed(setting: Setting, workers: int) -> None:
    setting.send("bad", "good")

    def handler(message: Delivery) -> None:
        if message.data == b"bad":
            raise LookupError("no such customer")

    with setting.consumer(max_attempts=2) as consumer:
        run_until(consumer, handler, 1, workers)
        wait_until(lambda: consumer.position(P0) == setting.broker.partition("orders", 0).end, "all is settled")
    with setting.consumer() as consumer:
        (parked,) = consumer.parked
        assert (parked.message.data, parked.message.offset) == (b"bad", 0)
        assert parked.reason == "LookupError: no such customer"
        with pytest.raises(ZeroDivisionError):
            consumer.parked.replay(lambda message: 1 / 0)
        assert len(consumer.parked) == 1
        replayed: list[bytes] = []
        assert consumer.parked.replay(lambda message: replayed.append(message.data)) == 1
        assert (replayed, len(consumer.parked)) == ([b"bad"], 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_handler_that_rolls_back_too_often_has_its_message_rejected(setting: Setting, workers: int) -> None:
    setting.send("bad", "good")
    seen: list[tuple[bytes, int]] = []

    def handler(message: Delivery) -> None:
        seen.append((message.data, message.attempt))
        if message.data == b"bad" and message.attempt < 9:
            consumer.rollback()
        elif message.data == b"good":
            consumer.stop()

    with setting.consumer(max_attempts=2) as consumer:
        consumer.run(handler, workers)
        (parked,) = consumer.parked
    assert (parked.message.data, parked.reason) == (b"bad", "rolled back too often")
    assert seen == [(b"bad", 1), (b"bad", 2), (b"good", 1)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("auto_ack", [True, False])
def test_a_parked_message_is_handled_again_after_a_while(setting: Setting, workers: int, auto_ack: bool) -> None:
    setting.producer.send("orders", "bad", attribute="kind", partition=Partition(0, 0))
    setting.send("good")
    seen: list[tuple[bytes, str | None, int, float]] = []

    def tries_of(data: bytes) -> list[tuple[str | None, int]]:
        return [(attribute, attempt) for of, attribute, attempt, _ in seen if of == data]

    def handler(message: Delivery) -> None:
        seen.append((message.data, message.attribute, message.attempt, time.monotonic()))
        if message.data == b"bad" and len(tries_of(b"bad")) < 4:
            raise LookupError("not yet")
        message.ack()

    with setting.consumer(max_attempts=2, parked_retry_s=0.3, auto_ack=auto_ack) as consumer:
        run_until(consumer, handler, 2, workers)
        assert len(consumer.parked) == 0
        assert consumer.position(P0) == setting.broker.partition("orders", 0).end
    assert tries_of(b"bad") == [("kind", 1), ("kind", 2), ("kind", 3), ("kind", 3)]
    assert tries_of(b"good") == [(None, 1)]
    last_s = [at_s for data, _, _, at_s in seen if data == b"bad"][-2:]
    assert last_s[1] - last_s[0] >= 0.29


@pytest.mark.parametrize("options", [{}, {"parked_retry_s": None}, {"topics": ["dead"], "parked_retry_s": 0.01}])
def test_a_parked_message_that_is_not_due_stays(setting: Setting, options: dict[str, Any]) -> None:
    setting.send("bad")

    def handler(message: Delivery) -> None:
        raise LookupError

    with setting.consumer(max_attempts=1, parked_retry_s=None) as consumer:
        threading.Thread(target=lambda: (wait_until(lambda: len(consumer.parked), "parked"), consumer.stop())).start()
        consumer.run(handler)
    seen: list[Delivery] = []
    with setting.consumer(**options) as consumer:
        threading.Timer(1.0, consumer.stop).start()
        consumer.run(seen.append)
        assert (seen, len(consumer.parked)) == ([], 1)


def test_a_parked_message_that_the_consumer_leaves_out_stays(setting: Setting) -> None:
    store = ParkedMessages(setting.parking, "g")
    where = {"topic": "orders", "partition": Partition(0, 0), "end": 9, "attribute": None}
    for number, data in enumerate((b"unwanted", b"wanted")):
        store.park(Received(offset=number, message_id=number, data=data, **where), "failed")
    seen: list[bytes] = []
    with setting.consumer(parked_retry_s=0.01, where=lambda message: message.data == b"wanted") as consumer:
        threading.Thread(target=lambda: (wait_until(lambda: len(store) == 1, "handled"), consumer.stop())).start()
        consumer.run(lambda message: seen.append(message.data))
    assert (seen, [one.message.data for one in store]) == ([b"wanted"], [b"unwanted"])


def test_a_parked_message_that_cannot_be_removed_does_not_end_the_consumer(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(store: object, number: int) -> bool:
        raise StoreFailed("parked.sqlite", "database or disk is full")

    where = {"topic": "orders", "partition": Partition(0, 0), "end": 9, "attribute": None, "data": b"x"}
    ParkedMessages(setting.parking, "g").park(Received(offset=0, message_id=0, **where), "failed")
    monkeypatch.setattr(ParkedMessages, "discard", full)
    seen: list[bytes] = []
    with setting.consumer(parked_retry_s=0.01) as consumer:
        run_until(consumer, lambda message: seen.append(message.data), 2)
    assert set(seen) == {b"x"}
    assert "parked message 1 was handled, and cannot be removed; it will be handled again" in caplog.text


def test_of_two_programs_one_gets_a_parked_message(setting: Setting) -> None:
    store = ParkedMessages(setting.parking, "g")
    where = {"topic": "orders", "partition": Partition(0, 0), "end": 9, "attribute": None, "data": b"x"}
    for offset in (0, 1):
        store.park(Received(offset=offset, message_id=offset, **where), "failed")
    assert store.take_due(["orders"], 60_000) is None
    taken = [ParkedMessages(setting.parking, "g").take_due(["orders"], 0) for _ in range(2)]
    assert sorted(one.message.offset for one in taken if one is not None) == [0, 1]
    assert store.take_due(["other"], 0) is None
    assert ParkedMessages(setting.parking, "h").take_due(["orders"], 0) is None
    assert store.take_due(["orders"], 60_000) is None


def test_what_is_parked_during_a_replay_stays(tmp_path: Path) -> None:
    store = ParkedMessages(tmp_path / "parked.sqlite", "g")
    where = {"topic": "orders", "partition": Partition(0, 0), "end": 9, "attribute": None, "data": b"x"}

    def rejected_again(offset: int) -> None:
        assert offset < 1000, "it does not end"
        store.park(Received(offset=offset + 100, message_id=offset + 100, **where), "failed again")

    for offset in range(2):
        store.park(Received(offset=offset, message_id=offset, **where), "failed")
    assert store.replay(lambda message: rejected_again(message.offset)) == 2
    assert [one.message.offset for one in store] == [100, 101]
    for one in store:
        rejected_again(one.message.offset)
        store.discard(one.number)
    assert [one.message.offset for one in store] == [200, 201]


def test_a_parked_message_keeps_its_properties_also_in_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "parked.sqlite"
    where = {"topic": "orders", "partition": Partition(0, 0), "end": 9, "attribute": "hot", "data": b"x"}
    messages = [
        Received(offset=number, message_id=number, properties=properties, **where)
        for number, properties in enumerate([None, {"price": "3", "KEYS": "\u8336"}])
    ]
    ParkedMessages(path, "g").park(messages[0], "failed")
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE parked DROP COLUMN properties")
    store = ParkedMessages(path, "g")
    assert [one.message for one in store] == messages[:1]
    store.park(messages[1], "failed")
    assert [one.message for one in store] == messages
    taken = [store.take_due(["orders"], 0) for _ in messages]
    assert [one.message for one in taken if one is not None] == messages


def test_two_programs_may_find_an_older_file_of_parked_messages(tmp_path: Path) -> None:
    path, failures = tmp_path / "parked.sqlite", list[StoreFailed]()
    message = Received(offset=1, message_id=1, topic="t", partition=Partition(0, 0), end=9, attribute=None, data=b"x")
    ParkedMessages(path, "g").park(message, "failed")

    def park() -> None:
        try:
            ParkedMessages(path, "h").park(message, "failed")
        except StoreFailed as failure:
            failures.append(failure)

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("ALTER TABLE parked DROP COLUMN properties")
        other.execute("BEGIN IMMEDIATE")
        other.execute("ALTER TABLE parked ADD COLUMN properties TEXT")
        thread = threading.Thread(target=park)
        thread.start()
        thread.join(1.0)  # it has seen the older table, and waits
        other.execute("COMMIT")
    thread.join()
    assert failures == []
    assert [one.message for one in ParkedMessages(path, "h")] == [message]


def test_rejected_messages_go_to_a_topic_or_a_function_or_nowhere(setting: Setting) -> None:
    setting.producer.send("orders", "bad", attribute="kind", partition=Partition(0, 0))
    given: list[object] = []
    options: list[Any] = ["topic:dead", "drop", lambda message, error: given.append((message.data, str(error)))]
    for number, on_reject in enumerate(options):
        setting.send("good")
        setting.offsets.offsets.clear()
        with setting.consumer(max_attempts=1, on_reject=on_reject) as consumer:

            def handler(message: Delivery) -> None:
                if message.data == b"bad":
                    raise ValueError("bad one")

            run_until(consumer, handler, number + 1)
            assert len(consumer.parked) == 0
    assert given == [(b"bad", "bad one")]
    assert [frame.message for frame in walk(setting.broker.partition("dead", 0).content())] == [Message(b"bad", "kind")]


def test_a_rejected_message_stays_where_it_is_while_it_cannot_be_parked(setting: Setting, tmp_path: Path) -> None:
    setting.send("bad")
    (tmp_path / "file").write_text("")

    def handler(message: Delivery) -> None:
        raise LookupError

    with (
        pytest.raises(StoreFailed, match="parked messages in"),
        setting.consumer(max_attempts=1, parking=tmp_path / "file" / "parked") as consumer,
    ):
        consumer.run(handler)
    assert setting.stored() == 0


def test_workers_keep_the_order_of_a_partition_and_share_the_partitions(setting: Setting) -> None:
    for partition in (0, 1):
        setting.send(*(f"{partition}-{number:03}" for number in range(200)), partition=partition)
    lock, seen, at_once, most = threading.Lock(), list[str](), set[str](), 0
    both = threading.Barrier(2, timeout=60)

    def handler(message: Delivery) -> None:
        nonlocal most
        text = message.data.decode()
        with lock:
            assert text[0] not in at_once, "one message of a partition at a time"
            at_once.add(text[0])
            most = max(most, len(at_once))
        if text.endswith("-000"):
            both.wait()
        with lock:
            at_once.remove(text[0])
            seen.append(text)

    with setting.consumer() as consumer:
        run_until(consumer, handler, 400, workers=4)
    for partition in "01":
        assert [text for text in seen if text[0] == partition] == [f"{partition}-{n:03}" for n in range(200)]
    assert most == 2


def test_a_handler_that_never_returns_does_not_keep_the_consumer_open(setting: Setting) -> None:
    setting.send("stuck", "next")
    release, entered = threading.Event(), threading.Event()

    def handler(message: Delivery) -> None:
        entered.set()
        release.wait(60)

    with setting.consumer(drain_s=0.05) as consumer:
        threading.Thread(target=lambda: (entered.wait(60), consumer.stop())).start()
        consumer.run(handler, workers=2)
    assert setting.stored() == 0
    release.set()


def test_of_many_messages_the_one_that_is_refused_comes_again_and_no_other(setting: Setting) -> None:
    """They are handled in blocks, without a lock for each."""
    setting.send(*(f"{number:03}" for number in range(300)))
    seen: list[tuple[str, int]] = []

    def handler(message: Delivery) -> None:
        seen.append((message.data.decode(), message.attempt))
        if message.data.endswith(b"50") and message.attempt == 1:
            raise ArithmeticError

    with setting.consumer(where=lambda message: message.data[-1:] in b"05") as consumer:
        run_until(consumer, handler, 60)
    wanted = [f"{number:03}" for number in range(0, 300, 5)]
    again = {"050", "150", "250"}
    assert seen == [(text, attempt) for text in wanted for attempt in ((1, 2) if text in again else (1,))]
    assert setting.stored() == end_of(300, 3)


def test_neither_commit_nor_interruption_settles_what_a_handler_has(setting: Setting) -> None:
    setting.send(*(f"{number:03}" for number in range(20)))
    consumer, seen = setting.consumer(), list[bytes]()

    def handler(message: Delivery) -> None:
        seen.append(message.data)
        if message.data == b"007":
            consumer.commit()
            assert setting.stored() == end_of(7, 3)
        if message.data == b"012":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), consumer:
        consumer.run(handler)
    assert seen == [b"%03d" % number for number in range(13)]
    assert setting.stored() == end_of(12, 3)


def test_a_filter_that_raises_has_its_message_come_again(setting: Setting) -> None:
    setting.send(*(f"{number:03}" for number in range(20)))
    asked: list[bytes] = []

    def where(message: Delivery) -> bool:
        asked.append(message.data)
        if message.data == b"007" and message.attempt == 1:
            raise ArithmeticError
        return message.data != b"012"

    found: list[bytes] = []
    with setting.consumer(where=where) as consumer:
        with pytest.raises(ArithmeticError):
            take(consumer, found, 19)
        take(consumer, found, 19)
    assert found == [b"%03d" % number for number in range(20) if number != 12]
    assert asked.count(b"007") == 2
    assert len(asked) == 21


def take(consumer: GroupConsumer, found: list[bytes], count: int) -> None:
    """Iterate until ``found`` has so many."""
    for message in consumer:
        found.append(message.data)
        if len(found) == count:
            break
