"""The batch writer: several blocks under way, in order, at least once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fix_client import ADDRESS, memory_session
from hypothesis import given
from hypothesis import strategies as st

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.puts import Receipt, encode_block
from metaq.backends.metaq.session import Session
from metaq.errors import (
    BrokerError,
    ConnectionFailed,
    DeadlineExceeded,
    ExtensionMissing,
    ProtocolError,
    RepetitionRefused,
)
from metaq.formats.frames import walk
from metaq.model import LocalTransactionId, Message
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts
from metaq.protocols.text.commands import Command, Put, PutBatch, Reply, Result, Version
from metaq.testing.memory import MemoryBroker

JAVA: frozenset[str] = frozenset()
MPUT = frozenset({"mput"})


def block(*payloads: str) -> tuple[bytes, int]:
    return encode_block(Message(payload.encode()) for payload in payloads)


def stored(broker: MemoryBroker, index: int = 0) -> list[str]:
    return [frame.body.decode() for frame in walk(broker.partition("t", index).content())]


def puts(broker: MemoryBroker) -> list[Command]:
    return [command for command in broker.commands if isinstance(command, Put | PutBatch)]


def first_copies(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))


# ---- without trouble


@pytest.mark.parametrize("extensions", [JAVA, MPUT])
def test_blocks_and_receipts_keep_the_order_of_write(extensions: frozenset[str]) -> None:
    broker = MemoryBroker({"t": 2}, extensions=extensions)
    writer = BatchWriter(memory_session(broker), "t")
    writer.write(0, *block("a", "b"))
    writer.write(1, *block("x"))
    writer.write(0, *block("c"))
    receipts = writer.flush()
    assert [(receipt.partition_index, receipt.offset) for receipt in receipts] == [(0, 0), (1, 0), (0, 42)]
    assert (stored(broker, 0), stored(broker, 1)) == (["a", "b", "c"], ["x"])
    assert writer.flush() == []
    writer.write(1, *block("y"))
    assert [receipt.offset for receipt in writer.flush()] == [21]


def test_blocks_are_under_way_before_earlier_ones_are_acknowledged() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    session = memory_session(broker)
    writer = BatchWriter(session, "t", blocks_max=3)
    for name in "abc":
        writer.write(0, *block(name))
    assert (len(puts(broker)), session.outstanding, writer.pending_bytes) == (3, 3, 63)
    writer.write(0, *block("d"))
    assert session.outstanding == 3


def test_unacknowledged_bytes_are_bounded_and_a_larger_block_goes_alone() -> None:
    session = memory_session(MemoryBroker({"t": 1}, extensions=MPUT))
    writer = BatchWriter(session, "t", bytes_max=50)
    writer.write(0, *block("a"))
    writer.write(0, *block("b"))
    assert (session.outstanding, writer.pending_bytes) == (2, 42)
    writer.write(0, *block("c"))
    assert (session.outstanding, writer.pending_bytes) == (2, 42)
    writer.write(0, *block("x" * 100))
    assert (session.outstanding, writer.pending_bytes) == (1, 120)
    assert len(writer.flush()) == 4


def test_without_mput_each_message_waits_for_the_one_before() -> None:
    broker = MemoryBroker({"t": 1}, extensions=JAVA)
    session = memory_session(broker)
    seen: list[int] = []
    broker.before_command = lambda command: seen.append(session.outstanding)
    BatchWriter(session, "t").write(0, *block("a", "b", "c"))
    assert set(seen) == {0}


# ---- connections that break


@pytest.mark.parametrize("extensions", [JAVA, MPUT])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    kills=st.sets(st.integers(1, 20), max_size=5),
    blocks_max=st.integers(1, 4),
)
def test_nothing_is_lost_and_first_copies_keep_the_order(
    extensions: frozenset[str], sizes: list[int], kills: set[int], blocks_max: int
) -> None:
    broker = MemoryBroker({"t": 1}, extensions=extensions)

    def restart_at(command: Command) -> None:
        if len(broker.commands) in kills:
            broker.kill()
            broker.start()

    broker.before_command = restart_at
    writer = BatchWriter(memory_session(broker), "t", blocks_max=blocks_max)
    names = iter(range(1000))
    blocks = [[f"m{next(names)}" for _ in range(size)] for size in sizes]
    for names_of_block in blocks:
        writer.write(0, *block(*names_of_block))
    receipts = writer.flush()
    wanted = [name for names_of_block in blocks for name in names_of_block]
    assert first_copies(stored(broker)) == wanted
    by_offset = {frame.offset: frame.body.decode() for frame in walk(broker.partition("t", 0).content())}
    assert [by_offset[receipt.offset] for receipt in receipts] == [names_of_block[0] for names_of_block in blocks]


def test_a_writer_that_gave_up_its_broker_keeps_saying_so() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    session = memory_session(broker)
    writer = BatchWriter(session, "t", policy=RetryPolicy(2, 0.5))
    writer.write(0, *block("a"))
    broker.kill()
    with pytest.raises(ConnectionFailed, match="Connection refused"):
        writer.flush()
    assert session.clock.slept_s == [0.5, 1.0]  # type: ignore[attr-defined]
    broker.start()
    for again in (writer.flush, lambda: writer.write(0, *block("b"))):
        with pytest.raises(ConnectionFailed, match="Connection refused"):
            again()


def test_a_reply_that_does_not_come_in_time_counts_as_a_lost_connection() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    session = memory_session(broker, Timeouts(request_s=2))
    writer = BatchWriter(session, "t")
    writer.write(0, *block("a"))

    def lose_one_reply(replies: list[bytes]) -> None:
        replies.clear()
        broker.shuffle = lambda replies: None

    broker.shuffle = lose_one_reply
    assert len(writer.flush()) == 1
    assert stored(broker) == ["a", "a"]


def test_a_broker_that_came_back_without_mput_is_an_error_not_a_puzzle() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t")
    writer.write(0, *block("a"))
    broker.kill()
    broker.extensions = JAVA
    broker.start()
    with pytest.raises(ExtensionMissing, match=f"broker {ADDRESS} does not offer 'mput'"):
        writer.flush()


def test_inside_a_transaction_nothing_is_sent_twice() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t", transaction=LocalTransactionId("s", 1))
    writer.write(0, *block("a"))
    broker.kill()
    broker.start()
    with pytest.raises(ConnectionFailed, match="put to t partition 0"):
        writer.flush()
    assert len(puts(broker)) == 1


# ---- refusals and mistakes


@pytest.mark.parametrize("extensions", [JAVA, MPUT])
def test_a_refusal_is_raised_at_once_and_ever_after(extensions: frozenset[str]) -> None:
    broker = MemoryBroker({"t": 1}, extensions=extensions)
    session = memory_session(broker)
    writer = BatchWriter(session, "nosuch")

    def write_and_flush() -> None:
        writer.write(3, *block("a"))
        writer.write(3, *block("b"))
        writer.flush()

    for _ in range(2):
        with pytest.raises(
            BrokerError, match=f"^broker {ADDRESS} refused put to nosuch partition 3 with 500: .*nosuch"
        ):
            write_and_flush()
    assert session.clock.slept_s == []  # type: ignore[attr-defined]


def test_each_block_in_flight_has_its_own_outcome_after_a_refusal() -> None:
    session = memory_session(MemoryBroker({"t": 1}, extensions=MPUT))
    writer = BatchWriter(session, "t")
    for index in (0, 3, 0, 4):
        writer.write(index, *block("a"))
    with pytest.raises(BrokerError, match="wrong partition 3") as refused:
        writer.flush()
    first, second, third, last = writer.outcomes
    assert [one.offset for one in (first, third) if isinstance(one, Receipt)] == [0, 21]
    assert second is refused.value
    assert "wrong partition 4" in str(last)
    assert session.quiet


def test_a_block_whose_answer_is_lost_behind_a_refusal_is_not_said_to_be_refused() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t")
    for index in (3, 0):
        writer.write(index, *block("a"))

    def lose_the_last_reply(replies: list[bytes]) -> None:
        del replies[1:]

    broker.shuffle = lose_the_last_reply
    with pytest.raises(BrokerError, match="wrong partition 3"):
        writer.flush()
    assert isinstance(writer.outcomes[1], DeadlineExceeded)


def test_a_refusal_of_what_may_be_stored_already_says_so() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t")
    writer.write(0, *block("a"))
    broker.kill()
    broker.start()
    broker.topics.clear()
    with pytest.raises(RepetitionRefused, match="do not accept topic t; an earlier attempt was not acknowledged, and"):
        writer.flush()
    assert stored(broker) == ["a"]


def test_blocks_that_were_never_sent_have_no_outcome_when_the_broker_is_given_up() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t", policy=RetryPolicy(1))
    writer.write(0, *block("a"))
    broker.kill()
    with pytest.raises(ConnectionFailed) as given_up:
        writer.write(0, *block("b"))
    assert writer.outcomes == [given_up.value, None]


class FullDisk(MemoryBroker):
    """Refuses so many puts."""

    refusals = 0
    text = "Put message to t-0 failed.Detail:disk is full: no space is left in /d"

    def answer(self, command: Command) -> Reply | None:
        if isinstance(command, Put | PutBatch) and self.refusals:
            self.refusals -= 1
            return Result(500, self.text, command.opaque)
        return super().answer(command)


@pytest.mark.parametrize("extensions", [JAVA, MPUT])
@pytest.mark.parametrize(("refusals", "wait_s"), [(3, 0.0), (9, 600.0)])
def test_a_full_disk_is_waited_for(extensions: frozenset[str], refusals: int, wait_s: float) -> None:
    broker = FullDisk({"t": 1}, extensions=extensions)
    broker.refusals = refusals
    writer = BatchWriter(memory_session(broker), "t", policy=RetryPolicy(3, wait_s=wait_s))
    for name in "abc":
        writer.write(0, *block(name))
    writer.flush()
    assert stored(broker) == ["a", "b", "c"]


def test_what_was_stored_behind_a_full_disk_is_not_overtaken() -> None:
    broker = FullDisk({"t": 1}, extensions=MPUT)
    broker.refusals = 2
    writer = BatchWriter(memory_session(broker), "t", policy=RetryPolicy(2))
    for name in "abc":
        writer.write(0, *block(name))
    with pytest.raises(BrokerError, match="disk is full"):
        writer.flush()
    assert stored(broker) == ["c"]
    assert isinstance(writer.outcomes[2], Receipt)


def test_a_disk_that_stays_full_is_refused_in_the_end() -> None:
    broker = FullDisk({"t": 1}, extensions=MPUT)
    broker.refusals = 99
    writer = BatchWriter(memory_session(broker), "t", policy=RetryPolicy(2))
    writer.write(0, *block("a"))
    with pytest.raises(BrokerError, match="disk is full"):
        writer.flush()
    assert (broker.refusals, stored(broker)) == (96, [])


@pytest.mark.parametrize("stored", [False, True])
def test_a_refused_repetition_of_what_may_be_stored_says_so(*, stored: bool) -> None:
    broker = FullDisk({"t": 1}, extensions=MPUT)
    broker.refusals = 1
    if stored:
        broker.text += "; it may be stored"
    writer = BatchWriter(memory_session(broker), "t", policy=RetryPolicy(2))
    writer.write(0, *block("a"))
    broker.topics.clear()
    with pytest.raises(BrokerError, match="do not accept topic t") as refused:
        writer.flush()
    assert refused.value.may_be_stored is stored


def test_another_refusal_after_a_lost_connection_says_that_earlier_blocks_may_be_stored() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t", policy=RetryPolicy(2))
    writer.write(0, *block("a"))
    broker.kill()
    broker.start()
    answer = broker.answer

    def refused_version(command: Command) -> Reply | None:
        return Result(503, "no thread", command.opaque) if isinstance(command, Version) else answer(command)

    broker.answer = refused_version  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="refused version with 503"):
        writer.flush()
    (outcome,) = writer.outcomes
    assert isinstance(outcome, RepetitionRefused)
    assert stored(broker) == ["a"]


def test_an_answer_that_is_no_receipt_is_malformed() -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    answer = broker.answer

    def protocol_error(command: Command) -> Reply | None:
        reply = answer(command)
        return Result(200, "thanks", reply.opaque) if reply and isinstance(command, PutBatch) else reply

    broker.answer = protocol_error  # type: ignore[method-assign]
    writer = BatchWriter(memory_session(broker), "t")
    writer.write(0, *block("a"))
    with pytest.raises(ProtocolError, match="the answer to put is 'thanks'"):
        writer.flush()


@pytest.mark.parametrize(("index", "count"), [(0, 0), (2**31, 1), (0, 2**31)])
def test_a_block_that_cannot_be_written_is_refused_and_the_writer_goes_on(index: int, count: int) -> None:
    broker = MemoryBroker({"t": 1}, extensions=MPUT)
    writer = BatchWriter(memory_session(broker), "t")
    writer.write(0, *block("a"))
    with pytest.raises(ValueError, match=r"count|partition"):
        writer.write(index, block("b")[0], count)
    writer.write(0, *block("c"))
    assert len(writer.flush()) == 2
    assert stored(broker) == ["a", "c"]


def _few_bytes(session: Session) -> object:
    return BatchWriter(session, "t", bytes_max=0)


def _few_blocks(session: Session) -> object:
    return BatchWriter(session, "t", blocks_max=0)


def _many_blocks(session: Session) -> object:
    return BatchWriter(session, "t", blocks_max=1000)


@pytest.mark.parametrize(
    ("make", "what"), [(_few_bytes, "bytes_max=0"), (_few_blocks, "blocks_max=0"), (_many_blocks, "blocks_max=1000")]
)
def test_parameters_out_of_range_are_refused(make: Callable[[Session], object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make(memory_session(MemoryBroker({"t": 1})))
