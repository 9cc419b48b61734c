"""``GroupConsumer`` on brokers in memory: reading, settling, starts, filters, ends. One member only."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fix_broker import wait_until
from fix_client import P0, P1, Setting, end_of, fail_at, read, texts

from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.metaq_group import broadcast
from metaq.client.groups.options import ConsumerOptions
from metaq.client.offsets import GroupOffset
from metaq.errors import ConsumerIdInUse, CorruptFrame, PartitionLost, StoreFailed
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Partition, TopicPartition
from metaq.protocols.text.commands import Command, Get, GetFiltered


def test_messages_of_all_partitions_come_in_the_order_of_each(setting: Setting) -> None:
    setting.send("a0", "a1", "a2")
    setting.send("b0", "b1", partition=1)
    with setting.consumer() as consumer:
        found = texts(read(consumer, 5))
        assert consumer.assignment == [P0, P1]
        assert consumer.generation == 1
    assert sorted(found) == ["a0", "a1", "a2", "b0", "b1"]
    assert [text for text in found if text[0] == "a"] == ["a0", "a1", "a2"]
    assert (setting.stored(P0), setting.stored(P1)) == (end_of(3, 2), end_of(2, 2))


def test_a_group_goes_on_where_it_was_and_an_exception_settles_nothing(setting: Setting) -> None:
    setting.send("a", "b", "c")
    with pytest.raises(ZeroDivisionError), setting.consumer() as consumer:
        fail_at(b"b", consumer)
    assert setting.stored() == end_of(1, 1)
    with setting.consumer() as consumer:
        assert texts(read(consumer, 2)) == ["b", "c"]
    assert setting.stored() == end_of(3, 1)
    with setting.consumer() as consumer:
        assert consumer.fetch(timeout=0.1) == []
        setting.send("d")
        assert texts(consumer.fetch(timeout=60)) == ["d"]


def test_a_batch_is_settled_by_the_next_one(setting: Setting) -> None:
    setting.send(*"abcdef")
    with setting.consumer() as consumer:
        first = consumer.fetch(4, timeout=60)
        assert len(first) == 4
        assert consumer.position(P0) == 0
        consumer.fetch(4, timeout=60)
        assert consumer.position(P0) == end_of(4, 1)
        assert consumer.lag()[P0] == end_of(2, 1)


def test_manual_acknowledgement_in_any_order(setting: Setting) -> None:
    setting.send("a", "b", "c")
    with setting.consumer(auto_ack=False) as consumer:
        first, second, third = read(consumer, 3)
        third.ack()
        second.ack()
        assert consumer.position(P0) == 0
        first.ack()
        assert consumer.position(P0) == end_of(3, 1)
        setting.send("d")
        read(consumer, 1)
    assert setting.stored() == end_of(3, 1), "nobody has acknowledged the last one"


def test_commit_settles_and_stores_at_once(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer(auto_ack=False) as consumer:
        read(consumer, 2)
        consumer.commit()
        assert setting.stored() == end_of(2, 1)


def test_a_rollback_delivers_again_and_gives_up_in_the_end(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer(auto_ack=False, max_attempts=3) as consumer:
        attempts = []
        for message in consumer:
            if message.data == b"b":
                message.ack()
                break
            attempts.append(message.attempt)
            assert consumer.rollback() == 1
        assert attempts == [1, 2, 3]
        (parked,) = consumer.parked
        assert (parked.message.data, parked.reason) == (b"a", "rolled back too often")
    assert setting.stored() == end_of(2, 1)


def test_what_was_rolled_back_or_released_cannot_be_settled(setting: Setting) -> None:
    setting.send("a")
    with setting.consumer(auto_ack=False) as consumer:
        (message,) = consumer.fetch(timeout=60)
        consumer.rollback([P0])
        with pytest.raises(PartitionLost, match=r"orders/0-0 offset 0: not acknowledged"):
            message.ack()
        (message,) = consumer.fetch(timeout=60)
    with pytest.raises(PartitionLost):
        message.ack()
    assert setting.stored() == 0


def test_filters_and_types_leave_messages_out_and_move_the_position(setting: Setting) -> None:
    for number in range(6):
        setting.producer.send("orders", str(number), attribute="even" if number % 2 == 0 else "odd", partition=P0[1])
    with setting.consumer(types=["even"], where=lambda message: message.data != b"2") as consumer:
        assert texts(read(consumer, 2)) == ["0", "4"]
        assert consumer.fetch(timeout=0.1) == []
        assert any(isinstance(command, GetFiltered) for command in setting.broker.commands)
    assert setting.stored() == setting.broker.partition("orders", 0).end


def test_a_filter_that_raises_loses_nothing(setting: Setting) -> None:
    setting.send("a")
    fails = [True]

    def where(message: Delivery) -> bool:
        if fails.pop() if fails else False:
            raise KeyError("filter")
        return True

    with setting.consumer(where=where) as consumer:
        with pytest.raises(KeyError):
            consumer.fetch(timeout=60)
        assert texts(consumer.fetch(timeout=60)) == ["a"]


def test_a_message_that_was_stored_twice_can_be_left_out(setting: Setting) -> None:
    setting.send("a")
    log = setting.broker.partition("orders", 0)
    log.append(bytes(log.content()))
    setting.send("b")
    with setting.consumer(dedupe=10) as consumer:
        found: list[str] = []
        while "b" not in found:
            found += texts(consumer.fetch(1, timeout=60))
    assert found == ["a", "b"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", ["a", "b"]),
        ("latest", []),
        ({P0.partition: end_of(1, 1)}, ["b"]),
        ({P0: end_of(1, 1)}, ["b"]),
        (0, ["a", "b"]),
        (datetime(1999, 1, 1, tzinfo=UTC), ["a", "b"]),
        (datetime(2099, 1, 1, tzinfo=UTC), []),
    ],
)
def test_starts(setting: Setting, start: object, expected: list[str]) -> None:
    setting.send("a", "b")
    with setting.consumer(start=start) as consumer:
        wait_until(lambda: consumer.assignment == [P0, P1], "it is assigned")
        setting.send("later")
        found = texts(read(consumer, len(expected) + 1))
    assert found == [*expected, "later"]


def test_a_start_where_no_message_begins_is_named(setting: Setting) -> None:
    setting.send("abc")
    with pytest.raises(ValueError, match="no message begins at offset 5"), setting.consumer(start={P0: 5}) as consumer:
        consumer.fetch(timeout=60)


def test_a_message_larger_than_any_reply_comes_whole(setting: Setting) -> None:
    setting.broker.transfer_bytes_max = 1000
    setting.producer.send("orders", b"L" * 10_000, partition=P0.partition)
    with setting.consumer(fetch_bytes="100 bytes") as consumer:
        assert len(read(consumer, 1)[0].data) == 10_000


def test_retention_moves_the_position_on(setting: Setting) -> None:
    setting.offsets.save("g", {P0: GroupOffset(3)})
    setting.broker.partition("orders", 0).segments[:] = [(1000, bytearray())]
    setting.send("kept")
    with setting.consumer() as consumer:
        assert [one.offset for one in read(consumer, 1)] == [1000]


def test_damage_is_an_error_unless_it_is_to_be_skipped(setting: Setting) -> None:
    setting.send("a", "b", "c")
    content = setting.broker.partition("orders", 0).segments[0][1]
    content[end_of(1, 1) + HEADER_BYTES] ^= 1
    with pytest.raises(CorruptFrame, match="orders/0-0"), setting.consumer() as consumer:
        read(consumer, 3)
    assert setting.stored() == end_of(1, 1), "what came before is settled"
    with setting.consumer(on_corrupt="skip") as consumer:
        assert texts(read(consumer, 1)) == ["c"]


def test_a_broker_that_restarts_is_read_on_without_repeats(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer() as consumer:
        assert texts(read(consumer, 2)) == ["a", "b"]
        setting.broker.kill()
        assert consumer.fetch(timeout=0.2) == []
        setting.broker.start()
        setting.send("c")
        assert texts(consumer.fetch(timeout=60)) == ["c"]


def test_functions_are_notified_of_the_assignment_where_messages_are_read(setting: Setting) -> None:
    setting.send("a")
    reported: list[tuple[str, list[TopicPartition], int]] = []
    with setting.consumer(
        on_assigned=lambda places: reported.append(("assigned", list(places), threading.get_ident())),
        on_revoked=lambda places: reported.append(("revoked", list(places), threading.get_ident())),
    ) as consumer:
        read(consumer, 1)
    me = threading.get_ident()
    assert reported == [("assigned", [P0, P1], me), ("revoked", [P0, P1], me)]


def test_two_programs_with_one_group_on_one_machine(setting: Setting) -> None:
    setting.send("a")
    with setting.consumer(offsets=None) as first:
        read(first, 1)
        second = setting.consumer(offsets=None, session_s=0.1)
        with pytest.raises(ConsumerIdInUse, match="group 'g'"), second:
            second.fetch(timeout=60)
    with setting.consumer(offsets=None) as third:
        assert third.fetch(timeout=0.1) == [], "the first one has stored its offset in the file of this machine"


def test_seeking(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer() as consumer:
        assert texts(read(consumer, 2)) == ["a", "b"]
        consumer.seek(P0, 0)
        assert texts(read(consumer, 1)) == ["a"]
        with pytest.raises(PartitionLost):
            consumer.seek(TopicPartition("orders", Partition(5, 5)), 0)


def test_positions_are_saved_now_and_then(setting: Setting) -> None:
    setting.send("a", "b")
    with setting.consumer(save_s=0.05) as consumer:
        consumer.fetch(1, timeout=60)
        consumer.fetch(1, timeout=60)
        wait_until(lambda: setting.stored() == end_of(1, 1), "the position is saved by itself")


def test_a_storage_that_fails_does_not_stop_the_reading(setting: Setting) -> None:
    setting.send("a", "b", "c")

    def fails(*_arguments: Any) -> None:
        raise StoreFailed("the database", "server has gone away")

    with setting.consumer(save_s=0.02) as consumer:
        with pytest.MonkeyPatch.context() as patched:
            for name in ("save", "save_if_unchanged"):
                patched.setattr(setting.offsets, name, fails)
            assert texts(read(consumer, 2)) == ["a", "b"]
            with pytest.raises(StoreFailed, match="the database cannot be used"):
                consumer.commit()
        consumer.commit()
        assert setting.stored() == end_of(2, 1)


def test_a_broadcast_consumer_has_a_group_of_its_own_and_a_file(setting: Setting) -> None:
    options = broadcast(ConsumerOptions(group="news", topics=["orders"], poll_max_s=0.05), setting.cluster)
    assert options.group.startswith("news-")
    assert not set(options.group) & set(".:")
    setting.send("a")
    with GroupConsumer(setting.cluster, options) as consumer:
        assert texts(read(consumer, 1)) == ["a"]
    with GroupConsumer(setting.cluster, options) as consumer:
        assert consumer.fetch(timeout=0.1) == []
    assert list(Path(os.environ["XDG_STATE_HOME"]).rglob("broadcast-offsets.json"))


def test_nothing_is_opened_before_it_is_used(setting: Setting) -> None:
    consumer = setting.consumer()
    assert repr(consumer).endswith("of orders: 0 partitions>")
    assert consumer.paused is not None
    consumer.close()
    assert setting.broker.commands == []
    with pytest.raises(ValueError, match="closed"):
        consumer.fetch()


def test_a_consumer_left_open_is_closed_at_the_end_with_a_warning(setting: Setting) -> None:
    consumer = setting.consumer()
    consumer.fetch(timeout=0)
    with pytest.warns(ResourceWarning, match="was never closed"):
        consumer._at_exit()


def test_a_consumer_that_is_dropped_leaves_its_group(setting: Setting) -> None:
    setting.send("a", "b")
    threads = set(threading.enumerate())
    with pytest.warns(ResourceWarning, match="a consumer of group 'g' was never closed"):  # noqa: PT031
        assert texts(read(setting.consumer(offsets=None, save_s=0.05), 2)) == ["a", "b"]
        wait_until(lambda: set(threading.enumerate()) <= threads, "its threads have ended")
    with setting.consumer(offsets=None) as consumer:
        assert texts(read(consumer, 1)) == ["b"], "the last message was not settled"


def test_a_function_that_raises_does_not_keep_a_consumer_in_its_group(setting: Setting) -> None:
    setting.send("a")
    with pytest.raises(ZeroDivisionError), setting.consumer(on_revoked=lambda places: 1 / 0) as consumer:
        read(consumer, 1)
    assert setting.stored() == end_of(1, 1), "what was settled is saved"
    assert consumer.assignment == []


def test_an_idle_consumer_asks_seldom(setting: Setting) -> None:
    setting.send("a")
    with setting.consumer(poll_max_s=10.0) as consumer:
        read(consumer, 1)
        before = sum(isinstance(command, Get) for command in setting.broker.commands)
        consumer.fetch(timeout=0.5)
        after = sum(isinstance(command, Get) for command in setting.broker.commands)
    assert after - before <= 4


def test_a_partition_whose_broker_refuses_does_not_stop_the_others(setting: Setting) -> None:
    setting.send("a")
    setting.send("b", partition=1)

    def refuse(command: Command) -> None:
        if isinstance(command, Get) and command.partition == 0:
            setting.broker.partitions.pop(("orders", 0), None)  # 404 from now on

    setting.broker.before_command = refuse
    with setting.consumer() as consumer:
        assert texts(read(consumer, 1)) == ["b"]
