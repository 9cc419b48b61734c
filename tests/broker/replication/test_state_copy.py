"""A slave's copy of the state of RocketMQ's clients: when it is taken, and what becomes of it at a promotion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from manual_loop import Steps
from metaq_broker.app import Broker
from metaq_broker.log.state.state_mark import NUMBERS_AT_ONCE
from metaq_broker.log.state.state_records import FILE_HEADER_BYTES, decode_changes, encode_changes
from metaq_broker.log.state.state_table import StatePart, StateTable
from metaq_broker.replication import state_copy
from metaq_broker.replication.copied_order import CopiedOrder, first_missing
from metaq_broker.replication.peer import PartitionKey, PeerLost, StoredRange
from metaq_broker.replication.state_copy import Change, StateCopy, StateSource
from metaq_broker.rocketmq.messages.partition_numbers import LEFT_OUT
from metaq_broker.text.peer import parse_state_part
from replicated import client, configured, put_many, run, running, slave_of
from stored import QuickFiles
from waiting import until

from metaq.errors import ProtocolError
from metaq.formats.frames import encode_frame
from metaq.model import Address

A, B = "a" * 32, "b" * 32
OTHER, NOTES = ("orders", 0), ("notes", 0)


# ---- what of the master's file is given away


def opened(folder: Path) -> tuple[StateTable, Steps]:
    steps = Steps()
    return StateTable.open(QuickFiles(), folder / "state", steps), steps


def test_a_part_ends_where_a_step_ended(tmp_path: Path) -> None:
    table, steps = opened(tmp_path)
    table.put("a", b"1")
    first = table.part(0, 0, 1 << 20)
    assert first is not None
    assert (first.position, first.size, first.data) == (FILE_HEADER_BYTES, FILE_HEADER_BYTES, b"")
    steps.run_all(1.0)
    second = table.part(first.number, first.size, 1 << 20)
    assert second is not None
    assert second.data == encode_changes(first.number, first.size, first.size, [("a", b"1")])
    assert second.size == first.size + len(second.data)
    assert table.part(first.number, second.size, 100) == StatePart(first.number, second.size, second.size, b"")
    assert table.part(first.number, first.size, 5) == second._replace(data=second.data[:5])
    beyond = table.part(first.number, second.size + 1, 100)
    assert beyond is not None
    assert beyond.position == FILE_HEADER_BYTES
    table.close()


def test_a_part_of_a_file_of_a_stream_begins_behind_its_longer_header(tmp_path: Path) -> None:
    """Of the master of a pair that elects it."""

    class Confirmed:
        incarnation, start = "1" * 32, 0

        def hold(self, end: int, then: Callable[[str | None], None]) -> None:
            then(None)

    steps = Steps()
    table = StateTable.open(QuickFiles(), tmp_path / "state", steps, stream=Confirmed())
    table.put("a", b"1")
    steps.run_all(1.0)
    part = table.part(0, 0, 1 << 20)
    assert part is not None
    assert decode_changes(tmp_path, part.number, part.position, part.data) == [("a", b"1")]
    table.close()


def test_there_is_no_part_while_a_fresh_file_is_written(tmp_path: Path) -> None:
    table, steps = opened(tmp_path)
    table.replace({"b": b"2"}, lambda error: None)
    for call in steps.timers:
        call.callback()
    steps.timers.clear()
    assert steps.jobs
    assert table.part(0, 0, 100) is None
    steps.run_all()
    part = table.part(0, 0, 100)
    assert part is not None
    assert part.size == FILE_HEADER_BYTES + len(part.data)
    table.close()


def test_entries_are_replaced_in_one_step(tmp_path: Path) -> None:
    table, steps = opened(tmp_path)
    table.put("a", b"1")
    steps.run_all(1.0)
    table.put("c", b"never alone")
    reported: list[object] = []
    table.replace({"b": b"2"}, reported.append)
    table.put("d", b"4")
    steps.run_all(1.0)
    assert reported == [None]
    table.close()
    again, _ = opened(tmp_path)
    assert dict(again.items()) == {"b": b"2", "d": b"4"}
    again.close()


def test_entries_are_replaced_also_while_others_are_written(tmp_path: Path) -> None:
    table, steps = opened(tmp_path)
    table.put("a", b"1", lambda error: None)
    for call in steps.timers:
        call.callback()
    steps.timers.clear()
    assert steps.jobs  # the write of "a" has begun
    table.replace({"b": b"2"}, lambda error: None)
    steps.run_all(1.0)
    kept = StateTable.open(QuickFiles(), tmp_path / "state", Steps())
    assert dict(kept.items()) == {"b": b"2"}
    kept.close()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("STATS\r\nEND\r\n", None),
        ("STATS\r\nfile 00000000000000ff 36 38 YWI=\r\nEND\r\n", StatePart(255, 36, 38, b"ab")),
        ("STATS\r\nfile 00000000000000ff 36 36 \r\nEND\r\n", StatePart(255, 36, 36, b"")),
    ],
)
def test_an_answer_is_read(text: str, part: StatePart | None) -> None:
    assert parse_state_part(text) == part


@pytest.mark.parametrize(
    "text",
    ["", "STATS\r\n", "STATS\r\nfile 1 2 3 YQ==\r\nEND\r\n", "STATS\r\nfile 00000000000000ff 36 38 YW\r\nEND\r\n"],
)
def test_what_is_no_answer_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="an answer to stats state that cannot be read"):
        parse_state_part(text)


# ---- the order of copies


@dataclass
class FakeStores:
    """Partitions with their readable ends; all are of incarnation ``A``."""

    ends: dict[PartitionKey, int] = field(default_factory=dict)
    incarnation: str = A

    def get(self, topic: str, index: int) -> Any:
        end = self.ends.get((topic, index))
        return None if end is None else SimpleNamespace(readable_end=end, incarnation=self.incarnation)


def view(**ends: int) -> dict[PartitionKey, StoredRange]:
    return {(topic, 0): StoredRange(0, end, A, 0) for topic, end in ends.items()}


def test_what_is_missing_is_named() -> None:
    stores = FakeStores({OTHER: 10})
    assert first_missing(cast(Any, stores), view(orders=10)) is None
    assert first_missing(cast(Any, stores), view(orders=11)) == OTHER
    assert first_missing(cast(Any, stores), view(notes=0)) == NOTES
    stores.incarnation = B
    assert first_missing(cast(Any, stores), view(orders=10)) == OTHER


def test_the_last_topics_are_never_in_front_of_others() -> None:
    stores = FakeStores()
    order = CopiedOrder(cast(Any, stores), {"notes"})
    assert order.look(view(orders=10)) == view(orders=10)
    assert order.look(view(orders=10, notes=5)) == view(orders=10)
    stores.ends[OTHER] = 9
    assert order.look(view(orders=20, notes=7)) == view(orders=20)
    stores.ends[OTHER] = 10
    assert order.look(view(orders=30, notes=9)) == view(orders=30, notes=5)
    stores.ends[OTHER] = 29
    assert order.look(view(orders=40, notes=11)) == view(orders=40, notes=5)
    stores.ends[OTHER] = 30
    assert order.look(view(orders=40, notes=11)) == view(orders=40, notes=9)


def test_a_partition_that_is_gone_keeps_nothing_waiting() -> None:
    order = CopiedOrder(cast(Any, FakeStores()), {"notes"})
    assert order.look(view(orders=10, notes=5)) == view(orders=10)
    assert order.look(view(notes=6)) == view(notes=5)
    order.forget()
    assert order.look(view(orders=1, notes=6)) == view(orders=1)


# ---- taking a state


@dataclass
class Target:
    """What was taken."""

    source: StateSource = field(default_factory=StateSource)
    entries: dict[str, bytes] = field(default_factory=dict)

    def take(self, source: StateSource, changes: Sequence[Change], *, whole: bool) -> None:
        self.source = source
        if whole:
            self.entries = {}
        for key, value in changes:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value


@dataclass
class FakePeer:
    """A master's state and what it holds."""

    table: StateTable
    held: Mapping[PartitionKey, StoredRange]
    reports_state: bool = True
    id: int = 3
    address = Address("master", 1)

    async def state_part(self, number: int, position: int, bytes_max: int) -> StatePart | None:
        return self.table.part(number, position, 7)

    async def stored_ranges(self) -> Mapping[PartitionKey, StoredRange]:
        return self.held

    async def broker_id(self) -> int:
        return self.id

    def check(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASK_S", "LOOK_S", "WAIT_S"):
        monkeypatch.setattr(state_copy, name, 0.005)


def copied(peer: FakePeer, stores: FakeStores, target: Target) -> StateCopy:
    async def connect(address: Address, timeout_s: float) -> FakePeer:
        return peer

    async def find() -> Address:
        return peer.address

    return StateCopy(cast(Any, stores), target, cast(Any, SimpleNamespace(find=find)), cast(Any, connect), 3)


@pytest.mark.usefixtures("impatient")
def test_a_state_is_taken_when_the_messages_are_there(tmp_path: Path) -> None:
    table, steps = opened(tmp_path)
    table.put("delay/1", b"5")
    table.put("gone", b"")
    steps.run_all(1.0)
    peer, stores, target = FakePeer(table, view(orders=10)), FakeStores({OTHER: 9}), Target()

    async def scenario() -> None:
        copy = copied(peer, stores, target)
        copy.start()
        await until(lambda: copy.trouble == "it waits for the copy of partition orders-0", "what it waits for")
        assert target.entries == {}
        stores.ends[OTHER] = 10
        await until(lambda: target.entries == {"delay/1": b"5", "gone": b""}, "the state")
        await until(lambda: copy.trouble is None, "no trouble")
        table.put("delay/1", b"6")
        table.delete("gone")
        steps.run_all(1.0)
        await until(lambda: target.entries == {"delay/1": b"6"}, "the change")
        table.replace({"other": b"1"}, lambda error: None)
        steps.run_all(1.0)
        await until(lambda: target.entries == {"other": b"1"}, "another file")
        await copy.stop()

    run(scenario())
    table.close()


@pytest.mark.usefixtures("impatient")
def test_a_partition_that_the_master_deleted_is_not_waited_for(tmp_path: Path) -> None:
    table, steps = opened(tmp_path)
    table.put("a", b"1")
    steps.run_all(1.0)
    peer, target = FakePeer(table, view(orders=10)), Target()

    async def scenario() -> None:
        copy = copied(peer, FakeStores(), target)
        copy.start()
        await until(lambda: copy.trouble == "it waits for the copy of partition orders-0", "what it waits for")
        peer.held = {}
        await until(lambda: target.entries == {"a": b"1"}, "the state")
        await copy.stop()

    run(scenario())
    table.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"reports_state": False}, "broker master:1 does not report its state"),
        ({"id": 4}, "broker master:1 has brokerId 4, this slave has 3; they must be the same"),
    ],
)
def test_of_whom_no_state_is_taken(tmp_path: Path, change: dict[str, Any], trouble: str) -> None:
    table, _ = opened(tmp_path)

    async def scenario() -> None:
        copy = copied(FakePeer(table, {}, **change), FakeStores(), Target())
        copy.start()
        await until(lambda: copy.trouble == trouble, trouble)
        await copy.stop()

    run(scenario())
    table.close()


def test_a_lost_master_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state_copy, "ASK_S", 0.005)
    table, steps = opened(tmp_path)
    table.put("a", b"1")
    steps.run_all(1.0)
    peer, target, lost = FakePeer(table, {}), Target(), [3]
    part = peer.state_part

    async def sometimes(number: int, position: int, bytes_max: int) -> StatePart | None:
        if lost[0]:
            lost[0] -= 1
            raise PeerLost(peer.address, "gone")
        return await part(number, position, bytes_max)

    peer.state_part = sometimes  # type: ignore[method-assign]

    async def scenario() -> None:
        copy = copied(peer, FakeStores(), target)
        copy.start()
        await until(lambda: copy.trouble == "broker master:1: gone", "the loss")
        await until(lambda: target.entries == {"a": b"1"}, "the state")
        await copy.stop()

    run(scenario())
    table.close()


# ---- two brokers

FRONT = "[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport=0\nbrokerName=broker-a\nbrokerIP1=127.0.0.1\n"


def state_of(broker: Broker) -> StateTable:
    assert broker.rocketmq is not None
    return broker.rocketmq.state


async def promoted(slave: Broker) -> None:
    await slave.replication.promote(force=True)


def test_a_slave_serves_no_client_and_a_promoted_one_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(configured(tmp_path / "m", role=FRONT)) as master, client(master) as producer:
            await put_many(producer, [b"x"] * 3)
            state_of(master).put("offset/t/g/0", (2).to_bytes(8))
            state_of(master).put("partition-number/7", f"{A}/0/0/t".encode())
            async with running(configured(tmp_path / "s", role=FRONT + slave_of(master))) as slave:
                front = slave.rocketmq
                assert front is not None
                assert slave.rocketmq_address is None
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(front.address.host, front.address.port)
                await until(lambda: state_of(slave).get("offset/t/g/0") == (2).to_bytes(8), "the copy")
                assert front.needed_from("SCHEDULE_TOPIC_XXXX", 0) is None
                await promoted(slave)
                assert slave.rocketmq_address == front.address
                _, writer = await asyncio.open_connection(front.address.host, front.address.port)
                writer.close()
                assert state_of(slave).get("copied-from") is None
                server = front.server
                assert server is not None
                assert server.groups.offsets.get("t", "g", 0) == 2
                left_out = 8 + LEFT_OUT + NUMBERS_AT_ONCE
                assert state_of(slave).get("partition-number-floor") == str(left_out).encode()
                given = [int(key.split("/")[1]) for key, _ in state_of(slave).items("partition-number/")]
                assert [number for number in given if number < left_out] == [7]
                assert server.store.numbers.next >= left_out
                count_and_numbers = (tmp_path / "s" / "rocketmq-mark").read_text().splitlines()[1]
                assert int(count_and_numbers.split()[1]) >= left_out

    run(scenario())


def test_a_state_that_does_not_fit_the_messages_loses_none_at_a_promotion(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(configured(tmp_path / "m", role=FRONT)) as master, client(master) as producer:
            for queue, count in ((0, 3), (1, 1)):
                await put_many(producer, [b"x"] * count, partition=queue)
            async with running(configured(tmp_path / "s", role=FRONT + slave_of(master))) as slave:
                front, state = slave.rocketmq, state_of(slave)
                assert front is not None
                await until(lambda: state.get("copied-from") not in (None, b"0 0"), "the copy of the state")
                logs = [slave.stores.get("t", queue) for queue in (0, 1)]
                assert [None if log is None else log.durable_ordinal for log in logs] == [3, 1]
                state.put("offset/t/g/0", (9).to_bytes(8))
                state.put("offset/t/g/1", (1).to_bytes(8))
                state.put("topic/t", b'{"read_queues": 1, "write_queues": 1}')
                await promoted(slave)
                server = front.server
                assert server is not None
                assert [server.groups.offsets.get("t", "g", queue) for queue in (0, 1)] == [3, 1]
                settings = server.topics.settings("t")
                assert settings is not None
                assert settings.read_queues == 2

    run(scenario())


def is_copied(slave: Broker, offset: int) -> bool:
    return state_of(slave).get("offset/t/g/0") == offset.to_bytes(8)


def test_what_belongs_to_one_broker_is_not_copied(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(configured(tmp_path / "m", role=FRONT)) as master:
            state_of(master).put("state/count", b"1000")
            state_of(master).put("offset/t/g/0", (0).to_bytes(8))
            for before, after in ((0, 1), (1, 2)):
                async with running(configured(tmp_path / "s", role=FRONT + slave_of(master))) as slave:
                    await until(partial(is_copied, slave, before), "the copy")
                    assert int(state_of(slave).get("state/count") or 0) < 1000
                    state_of(master).put("offset/t/g/0", after.to_bytes(8))
                    state_of(master).put("state/count", b"2000")
                    await until(partial(is_copied, slave, after), "the change")
                    assert int(state_of(slave).get("state/count") or 0) < 1000

    run(scenario())


def test_a_promotion_that_a_crash_cut_off_is_finished_by_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = configured(tmp_path / "s", role=FRONT)
        async with running(config) as broker:
            state_of(broker).put("partition-number/7", f"{A}/0/0/t".encode())
            state_of(broker).put("copied-from", b"1 36")
        async with running(config) as broker:
            assert broker.rocketmq is not None
            server = broker.rocketmq.server
            assert server is not None
            first = server.store.numbers.next
            assert first > LEFT_OUT
            assert state_of(broker).get("copied-from") is None
        async with running(config) as broker:
            assert broker.rocketmq is not None
            server = broker.rocketmq.server
            assert server is not None
            assert server.store.numbers.next == first

    run(scenario())


def test_a_slave_knows_the_topics_that_clients_made_at_the_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(configured(tmp_path / "m", role=FRONT)) as master:
            state_of(master).put("topic/made", b'{"read_queues": 5, "write_queues": 5}')
            async with running(configured(tmp_path / "s", role=FRONT + slave_of(master))) as slave:
                await until(lambda: slave.engine.config.topic_settings("made").num_partitions == 5, "its queues")
                state_of(master).delete("topic/made")
                await until(lambda: slave.engine.config.topic_settings("made").num_partitions == 2, "none of its own")

    run(scenario())


def test_messages_that_wait_at_the_master_are_not_removed_at_the_slave(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(configured(tmp_path / "m", role=FRONT)) as master:
            topic = "SCHEDULE_TOPIC_XXXX"
            log = master.stores.get_or_create(topic, 0)
            log.append([encode_frame(1, 0, b"waits")])
            master.commit.schedule(log)
            state_of(master).put("delay/1", b"0")
            async with running(configured(tmp_path / "s", role=FRONT + slave_of(master))) as slave:
                assert slave.rocketmq is not None
                await until(lambda: slave.rocketmq.needed_from(topic, 0) == 0, "the level's queue")
                assert slave.rocketmq.needed_from("t", 0) is None

    run(scenario())
