"""Slots: blocks in memory that a broker process sees, over connections that hold and connections that break."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker
from fix_client import TIMEOUTS, memory_session, stored_messages

from metaq.client.batch_writer import BatchWriter
from metaq.client.pool import SessionPool
from metaq.client.producer import encode_block
from metaq.client.session import Session
from metaq.client.shared_memory import SharedMemory, Slot
from metaq.client.slots import BYTES_MAX, SLOT_BYTES_MIN, Slots
from metaq.errors import BrokerError, ConnectionFailed
from metaq.model import Message
from metaq.testing.memory import MemoryBroker
from metaq.wire.text.commands import Command, PutBatch, PutShared, Share

pytestmark = pytest.mark.process

SLOT = 1 << 20


@pytest.fixture
def session(dev_broker: RunningBroker) -> Iterator[Session]:
    with closing(Session.connect(dev_broker.address, TIMEOUTS)) as session:
        yield session


def puts(posted: list[Command]) -> list[type]:
    return [type(command) for command in posted if isinstance(command, PutBatch | PutShared)]


def offers(posted: list[Command]) -> int:
    return sum(isinstance(command, Share) for command in posted)


def write(writer: BatchWriter, slot: Slot | None, name: str, partition: int = 0) -> None:
    block, count = encode_block([Message(f"{name}-{number}".encode()) for number in range(50)])
    if slot is None:
        writer.write(partition, block, count)
    else:
        slot.view[: len(block)] = block
        writer.write(partition, slot.view[: len(block)], count, slot=slot)


def stored(session: Session, partition: int = 0) -> list[str]:
    """The names of the blocks that the partition has; each has to be whole."""
    names = []
    payloads = [message.payload.decode() for message in stored_messages(session, "t", partition)]
    for first in range(0, len(payloads), 50):
        name = payloads[first].rpartition("-")[0]
        assert payloads[first : first + 50] == [f"{name}-{number}" for number in range(50)]
        names.append(name)
    return names


def test_blocks_in_slots_are_not_sent(session: Session, posted: list[Command]) -> None:
    writer, slots = BatchWriter(session, "t"), Slots(session, SLOT)
    for number in range(100):
        write(writer, slots.take(), f"b{number}")
    assert len(writer.flush()) == 100
    assert set(puts(posted)) == {PutShared}
    assert offers(posted) == 1
    assert stored(session) == [f"b{number}" for number in range(100)]
    assert session.shared is not None
    assert session.shared.unused


def test_blocks_with_and_without_slots_keep_their_order(session: Session) -> None:
    writer, slots = BatchWriter(session, "t"), Slots(session, SLOT)
    for number in range(60):
        write(writer, slots.take() if number % 3 else None, f"b{number}")
    writer.flush()
    assert stored(session) == [f"b{number}" for number in range(60)]


def test_slots_are_bounded_and_come_back(session: Session) -> None:
    slots = Slots(session, SLOT)
    taken = [slots.take() for _ in range(BYTES_MAX // SLOT)]
    assert None not in taken
    assert len({slot.position for slot in taken if slot}) == BYTES_MAX // SLOT
    assert slots.take() is None
    last = taken.pop()
    assert last is not None
    last.free()
    assert slots.take() is last


@pytest.mark.parametrize("size", [4096, SLOT_BYTES_MIN - 4096, BYTES_MAX // 4 + 1, BYTES_MAX * 10])
def test_there_are_none_for_small_and_for_huge_blocks(session: Session, posted: list[Command], size: int) -> None:
    slots = Slots(session, size)
    assert (slots.take(), slots.take(), offers(posted)) == (None, None, 0)
    assert Slots(session, SLOT).take() is not None, "the next user's blocks are of another size"


@pytest.mark.parametrize("size", [SLOT_BYTES_MIN, SLOT_BYTES_MIN + 1, BYTES_MAX // 4])
def test_a_slot_holds_a_block(session: Session, size: int) -> None:
    slot = Slots(session, size).take()
    assert slot is not None
    assert size <= len(slot.view) < size + 4096
    assert not slot.view.readonly


def test_the_next_user_of_a_session_finds_the_memory(session: Session, posted: list[Command]) -> None:
    for _ in range(3):
        writer, slots = BatchWriter(session, "t"), Slots(session, SLOT)
        write(writer, slots.take(), "x")
        writer.flush()
    assert offers(posted) == 1


def test_a_user_before_that_kept_a_slot_does_not_disturb(session: Session, posted: list[Command]) -> None:
    kept = Slots(session, SLOT).take()
    assert kept is not None
    slots = Slots(session, SLOT)
    taken = [slots.take() for _ in range(BYTES_MAX // SLOT)]
    assert None not in taken
    assert offers(posted) == 2
    kept.view[:5] = b"stray"
    kept.free()
    assert slots.take() is None, "that one belongs to other memory"


def test_another_size_gets_other_memory(session: Session) -> None:
    first, second = Slots(session, SLOT).take(), Slots(session, 2 * SLOT).take()
    assert first is not None
    assert second is not None
    assert len(second.view) == 2 * SLOT
    writer = BatchWriter(session, "t")
    write(writer, first, "sent, because the broker does not see it any more")
    write(writer, second, "not sent")
    writer.flush()
    assert stored(session) == ["sent, because the broker does not see it any more", "not sent"]


def test_a_broker_that_does_not_offer_it_is_not_asked() -> None:
    broker = MemoryBroker({"t": 1})
    session = memory_session(broker)
    slots = Slots(session, SLOT)
    assert (slots.take(), slots.take()) == (None, None)
    assert not any(isinstance(command, Share) for command in broker.commands)


def test_a_broker_that_refuses_is_asked_once(
    session: Session, posted: list[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaq.client.slots.boot_id", lambda: "another-machine")
    slots = Slots(session, SLOT)
    assert (slots.take(), slots.take(), offers(posted)) == (None, None, 1)
    assert not session.closed
    assert Slots(session, SLOT).take() is None
    assert offers(posted) == 1


def test_where_the_system_has_none(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_name: str, _flags: int) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr("metaq.client.shared_memory._MAKE", full)
    assert Slots(session, SLOT).take() is None
    writer = BatchWriter(session, "t")
    write(writer, None, "sent")
    writer.flush()
    assert stored(session) == ["sent"]


def test_memory_goes_with_its_connection_and_its_last_slot(session: Session) -> None:
    def memories() -> int:
        """How many are mapped: Python keeps a descriptor of each."""
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found += "metaq-blocks" in os.readlink(f"/proc/self/fd/{name}")
        return found

    gc.collect()
    gc.disable()  # none of it is for the collector to find
    before = memories()
    first, second = (Slots(session, SLOT).take() for _ in range(2))
    assert first is not None
    assert second is not None
    assert memories() == before + 2
    first.free()
    first = None
    assert memories() == before + 1
    session.close()
    second.view[:5] = b"still"
    assert memories() == before + 1
    second = None
    assert memories() == before
    gc.enable()


def test_what_was_under_way_when_the_broker_died_is_sent_again(
    start_broker: StartBroker, tmp_path: Path, posted: list[Command]
) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    port = str(broker.address.port)
    with closing(Session.connect(broker.address, TIMEOUTS)) as session:
        writer, slots = BatchWriter(session, "t", retries=20, retry_interval_s=0.1), Slots(session, SLOT)
        wanted = [f"b{number}" for number in range(90)]
        for number, name in enumerate(wanted):
            if number in (30, 60):
                broker.kill()
                broker = start_broker("dev", tmp_path / "data", "--port", port)
            write(writer, slots.take(), name)
        assert len(writer.flush()) == 90
        assert list(dict.fromkeys(stored(session))) == wanted
        assert offers(posted) == 3, "each connection has its own"
        assert PutBatch in puts(posted), "over the next connection they are sent"
        assert puts(posted)[-1] is PutShared


def test_a_stopped_broker_leaves_no_slot_to_wait_for(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    with closing(Session.connect(broker.address, TIMEOUTS)) as session:
        writer, slots = BatchWriter(session, "t", retries=1, retry_interval_s=0.01), Slots(session, SLOT)
        write(writer, slots.take(), "stored")
        writer.flush()
        broker.kill()
        with suppress(ConnectionFailed):  # the system may take the bytes before it says that nobody is there
            write(writer, slots.take(), "lost")
        with pytest.raises(ConnectionFailed):
            writer.flush()
        assert slots.take() is None
        assert session.closed


def test_a_refused_block_fails_the_writer_and_the_pool_drops_the_session(dev_broker: RunningBroker) -> None:
    pool = SessionPool(TIMEOUTS)

    def use() -> None:
        with pool.lease(dev_broker.address) as session:
            writer, slots = BatchWriter(session, "t"), Slots(session, SLOT)
            write(writer, slots.take(), "x", partition=77)
            write(writer, slots.take(), "y")
            writer.flush()

    with pytest.raises(BrokerError, match="wrong partition 77"):
        use()
    assert pool.idle_count(dev_broker.address) == 0


def test_memory_shows_what_it_is() -> None:
    memory = SharedMemory(SLOT, 3)
    slots = [memory.take() for _ in range(4)]
    assert [slot and slot.position for slot in slots] == [0, SLOT, 2 * SLOT, None]
    share = memory.offer("boot")
    status = os.stat(f"/proc/{share.process}/fd/{share.descriptor}")
    assert (share.size, share.device, share.inode) == (3 * SLOT, status.st_dev, status.st_ino)
    with pytest.raises(OSError, match="Operation not permitted"):
        os.truncate(memory.fd, 0)
    memory.close_file()
