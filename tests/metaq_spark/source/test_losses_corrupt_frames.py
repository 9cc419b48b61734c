"""Stories of ``onCorrupt``: damage in the middle of a partition, and what is read around it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import RunningBroker
from metaq_harness import NO_EXTENSIONS, Harness

from metaq.backends.metaq.pool import SessionPool
from metaq.errors import CorruptFrame, TopicNotFound
from metaq.formats.frames import encode_body, encode_frame, walk
from metaq.model import Message
from metaq.protocols.text.commands import Command, Get, Reply, Result, Value
from metaq.testing.memory_partition import MemoryPartition
from metaq_spark.backends.metaq.options import parse_source_options
from metaq_spark.backends.metaq.resync import first_chain
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.columns.text import parse_pairs
from metaq_spark.errors import DataLoss, OptionError, ReadFailed
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader
from metaq_spark.source.losses import LETTER_BYTES_MAX

CARTS = {"onCorrupt": "deadletter", "deadLetterTopic": "carts"}


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


def payloads(count: int = 100, size: int = 300) -> list[bytes]:
    chance = random.Random(count)
    return [chance.randbytes(chance.randrange(1, size)) for _ in range(count)]


def starts_of(store: MemoryPartition) -> list[int]:
    return [frame.offset for frame in walk(bytes(store.segments[0][1]))]


def letters(harness: Harness) -> list[Message]:
    return [
        frame.message
        for broker in harness.brokers
        for (topic, _), store in sorted(broker.partitions.items())
        if topic == "carts"
        for frame in walk(store.content())
    ]


Harm = Callable[[bytearray, int, int], None]


def flip(content: bytearray, at: int, end: int) -> None:
    content[end - 1] ^= 1


def wrong_checksum(content: bytearray, at: int, end: int) -> None:
    content[at + 5] ^= 0x40


def negative_length(content: bytearray, at: int, end: int) -> None:
    content[at] |= 0x80


def longer(content: bytearray, at: int, end: int) -> None:
    content[at + 2] ^= 0x04  # 1024 bytes more, into the middle of another message


def shorter(content: bytearray, at: int, end: int) -> None:
    content[at + 3] = 0


def far_too_long(content: bytearray, at: int, end: int) -> None:
    content[at] = 0x7F


def past_the_end(content: bytearray, at: int, end: int) -> None:
    content[at + 1] = 0x20  # two MiB, believable


def header_gone(content: bytearray, at: int, end: int) -> None:
    content[at : at + 20] = b"\xee" * 20


def all_gone(content: bytearray, at: int, end: int) -> None:
    content[at:end] = b"\xaa" * (end - at)


def impossible_attribute(content: bytearray, at: int, end: int) -> None:
    content[at:end] = encode_frame(1, 1, b"\x7f" * (end - at - 20))


HARMS = [
    flip, wrong_checksum, negative_length, longer, shorter, far_too_long, past_the_end, header_gone, all_gone,
    impossible_attribute,
]  # fmt: skip


@pytest.mark.parametrize("victim", [0, 50, 99, *rarely(1, 98)])
@pytest.mark.parametrize("harm", HARMS)
def test_one_damaged_message_costs_one_message(
    harness: Harness, harm: Harm, victim: int, caplog: pytest.LogCaptureFixture
) -> None:
    messages = payloads()
    harness.put("orders", 0, 0, *messages)
    store = harness.brokers[0].partition("orders", 0)
    bounds = [*starts_of(store), store.end]
    original = bytes(store.segments[0][1][bounds[victim] : bounds[victim + 1]])
    harm(store.segments[0][1], bounds[victim], bounds[victim + 1])
    harmed = bytes(store.segments[0][1][bounds[victim] : bounds[victim + 1]])
    assert harmed != original
    break_boundaries(harness)
    rest = messages[:victim] + messages[victim + 1 :]

    with pytest.raises(CorruptFrame, match=rf"corrupt frame in orders/0-0 at offset {bounds[victim]}:"):
        harness.batch(fetchBytes="1000")
    for fetch_bytes in ("700", "1m"):  # the same on replay, and however it is fetched
        caplog.clear()
        assert harness.batch(onCorrupt="skip", fetchBytes=fetch_bytes) == rest
        (warning,) = [record.getMessage() for record in caplog.records if "does not list it" not in record.message]
        assert f"orders/0-0: bytes [{bounds[victim]}, {bounds[victim + 1]}) are damaged: " in warning

    assert harness.batch(**CARTS) == rest
    (letter,) = letters(harness)
    assert letter.payload == harmed
    reported = parse_pairs(letter.attribute or "")
    assert (reported["topic"], reported["partition"]) == ("orders", "0-0")
    assert (reported["start"], reported["end"]) == (str(bounds[victim]), str(bounds[victim + 1]))
    assert reported["reason"]


def break_boundaries(harness: Harness) -> None:
    """Let the broker in memory answer ``boundary`` as one with an index does: right outside of what is damaged."""
    store = harness.brokers[0].partition("orders", 0)
    known: list[int] = []
    plain, at = MemoryPartition(1 << 30), 0
    for number, frame in enumerate(walk_as_it_was(harness)):
        plain.append(frame)
        known += [at] if number % 10 == 0 else []
        at += len(frame)
    known.append(at)
    store.boundary = lambda offset: max(at for at in known if at <= max(offset, 0))  # type: ignore[method-assign]


def walk_as_it_was(harness: Harness) -> list[bytes]:
    return [encode_frame(1, *encode_body(Message(payload))) for payload in payloads()]


def test_several_damaged_messages_in_a_row_and_apart(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    messages = payloads()
    harness.put("orders", 0, 0, *messages)
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    bounds = [*starts_of(harness.brokers[0].partition("orders", 0)), len(content)]
    break_boundaries(harness)
    victims = {3, 4, 5, 40, 77, 99}
    for victim, harm in zip(sorted(victims), [flip, longer, flip, header_gone, flip, negative_length], strict=True):
        harm(content, bounds[victim], bounds[victim + 1])
    got = harness.batch(onCorrupt="skip", fetchBytes="2000")
    assert got == harness.batch(onCorrupt="skip")
    lost = [payload for payload in messages if payload not in got]
    assert set(lost) == {messages[victim] for victim in victims}


def test_a_message_inside_a_payload_is_not_taken_for_one(harness: Harness) -> None:
    inner = b"".join(encode_frame(7, 0, b"inner %d" % n) for n in range(10))
    messages = [b"a" * 50, b"x" * 30 + inner + b"y" * 30, *payloads(30)]
    harness.put("orders", 0, 0, *messages)
    store = harness.brokers[0].partition("orders", 0)
    second = starts_of(store)[1]
    store.segments[0][1][second : second + 4] = b"\x7f\xff\xff\xff"
    known = [0, store.end]
    store.boundary = lambda offset: max(at for at in known if at <= offset)  # type: ignore[method-assign]
    assert harness.batch(onCorrupt="skip") == [messages[0], *messages[2:]]


def test_damage_at_the_end_and_nothing_behind_it(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"good", b"evil")
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    content[24:28] = b"\x00\x00\xff\xff"
    harness.brokers[0].partition("orders", 0).boundary = lambda offset: 0 if offset < 48 else 48  # type: ignore[method-assign]
    assert harness.batch(onCorrupt="skip") == [b"good"]
    assert harness.batch(**CARTS) == [b"good"]
    assert [letter.payload for letter in letters(harness)] == [bytes(content[24:])]


def test_a_large_dead_letter_is_cut(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"x" * (LETTER_BYTES_MAX + 5000), b"next")
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    content[-30] ^= 1
    assert harness.batch(**CARTS) == [b"next"]
    (letter,) = letters(harness)
    assert letter.payload == bytes(content[:LETTER_BYTES_MAX])
    assert parse_pairs(letter.attribute or "")["end"] == str(LETTER_BYTES_MAX + 5020)


def test_a_task_that_runs_again_stores_its_letters_again(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"good", b"evil")
    harness.brokers[0].partition("orders", 0).segments[0][1][-1] ^= 1
    assert [harness.batch(**CARTS) for _ in range(2)] == [[b"good"]] * 2
    assert len(letters(harness)) == 2


def test_a_missing_topic_for_dead_letters_is_reported_before_reading(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"good")
    nowhere = {"onCorrupt": "deadletter", "deadLetterTopic": "nowhere"}
    with pytest.raises(TopicNotFound, match="topic 'nowhere' does not exist"):
        harness.batch(**nowhere)
    with pytest.raises(TopicNotFound, match="topic 'nowhere' does not exist"):
        harness.stream(**nowhere).initialOffset()
    assert harness.count(Get) == 0


def test_a_dead_letter_that_cannot_be_stored_fails_the_task(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"evil")
    harness.brokers[0].partition("orders", 0).segments[0][1][-1] ^= 1
    for broker in harness.brokers:
        broker._refusal = lambda command: "no space left"  # type: ignore[method-assign]
    with pytest.raises(OptionError, match=r"deadLetterTopic: orders/0-0: bytes \[0, 24\) are damaged.*no space left"):
        harness.batch(**CARTS)


def test_the_broker_of_the_dead_letters_may_restart(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"good", b"evil")
    harness.brokers[0].partition("orders", 0).segments[0][1][-1] ^= 1
    killed = []

    def restart(broker_index: int) -> Callable[[Command], None]:
        def cut(command: Command) -> None:
            if "put" in type(command).__name__.lower() and not killed:
                killed.append(command)
                harness.brokers[broker_index].kill()
                harness.brokers[broker_index].start()

        return cut

    for index, broker in enumerate(harness.brokers):
        broker.before_command = restart(index)
    assert harness.batch(**CARTS) == [b"good"]
    assert len(killed) == 1
    assert 1 <= len(letters(harness)) <= 2


def test_a_broker_that_a_dead_letter_needs_is_tried_as_often_as_the_options_say(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"evil")
    harness.brokers[0].partition("orders", 0).segments[0][1][-1] ^= 1

    def stop_the_other(command: Command) -> None:
        if isinstance(command, Get):
            harness.brokers[1].kill()

    harness.brokers[0].before_command = stop_the_other
    with pytest.raises(ReadFailed, match=r"broker b1:1"):
        harness.batch(**CARTS, retries="2")
    assert harness.clock.slept_s == pytest.approx([0.2, 0.4])


def quarantine(harness: Harness, start: int, end: int) -> None:
    """As our broker serves a partition with damage it knows of: slices end before it, 301 inside names its end."""
    broker, plain = harness.brokers[0], harness.brokers[0].answer

    def answer(command: Command) -> Reply | None:
        if not isinstance(command, Get) or (command.topic, command.partition) != ("orders", 0):
            return plain(command)
        if start <= command.offset < end:
            return Result(301, str(end), command.opaque)
        reply = plain(command)
        if isinstance(reply, Value) and command.offset < start:
            return reply._replace(data=reply.data[: start - command.offset])
        return reply

    broker.answer = answer  # type: ignore[method-assign]


def test_a_range_that_the_broker_has_quarantined(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    messages = payloads(10)
    harness.put("orders", 0, 0, *messages)
    bounds = starts_of(harness.brokers[0].partition("orders", 0))
    quarantine(harness, bounds[3], bounds[5])
    rest = messages[:3] + messages[5:]
    with pytest.raises(DataLoss, match=rf"orders/0-0.*offset {bounds[3]}.*moved on to offset {bounds[5]}"):
        harness.batch()
    caplog.clear()
    assert harness.batch(onCorrupt="skip") == rest
    (warning,) = [record.getMessage() for record in caplog.records if "does not list it" not in record.message]
    assert f"bytes [{bounds[3]}, {bounds[5]}) are damaged: quarantined by the broker" in warning
    assert harness.batch(**CARTS) == rest
    (letter,) = letters(harness)
    assert letter.payload == b""
    assert parse_pairs(letter.attribute or "")["reason"] == "quarantined by the broker"


def test_retention_is_no_damage(harness: Harness) -> None:
    harness.brokers[0].segment_bytes_max = 42
    harness.put("orders", 0, 0, b"1", b"2", b"3", b"4")
    reader = harness.stream(onCorrupt="skip")
    harness.brokers[0].partition("orders", 0).drop_segments(1)
    start, end = {"v": 1, "topics": {"orders": {"0-0": 21}}}, {"v": 1, "topics": {"orders": {"0-0": 84}}}
    with pytest.raises(DataLoss, match="moved on to offset 42"):
        harness.replay(reader, start, end)


@pytest.mark.parametrize("exact", [True, False])
def test_the_search_is_not_taken_in_by_zeros_and_gives_up_on_too_much_work(exact: bool) -> None:
    good = encode_frame(5, 0, b"payload") * 3
    assert first_chain(b"\x00" * 5000 + good, exact=exact) == 5000
    assert first_chain(b"\x00" * 5000, exact=exact) is None
    assert first_chain(b"", exact=exact) is None
    assert first_chain(good[:-1], exact=exact) == (None if exact else 0)
    assert first_chain(good[:30], exact=exact) == (None if exact else 0)
    assert first_chain(good[:20], exact=exact) is None
    # Each of these headers believably reaches to the end, and none is right.
    size = 60_000
    liar = b"".join((size - at - 20).to_bytes(4) + b"\x00" * 20 + b"\x01" * 6 for at in range(0, size, 30))
    assert first_chain(liar[:size], exact=exact) is None


@pytest.mark.process
def test_damage_on_the_disk_of_a_real_broker(
    start_broker: Callable[..., RunningBroker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from metaq.backends.metaq.puts import encode_block, put_batch
    from metaq.backends.metaq.session import Session

    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "1")
    messages = payloads(2000, 200)
    session = Session.connect(broker.address)
    block, count = encode_block([Message(payload, "type_a") for payload in messages])
    put_batch(session, "orders", 0, block, count)
    session.close()
    frames = list(walk(block))
    (segment,) = (tmp_path / "data").glob("**/orders-0/*.meta")

    def read(**options: str) -> list[bytes]:
        given = {"brokers": str(broker.address), "subscribe": "orders", **options}
        pool = SessionPool()
        reader = BatchReader(MetaQSource(parse_source_options(given, Use.BATCH_READ), pool))
        try:
            return [v for task in reader.partitions() for b in reader.read(task) for v in b["value"].to_pylist()]
        finally:
            pool.close()

    def harm(victim: int, at: int, byte: int) -> None:
        with open(segment, "r+b") as file:
            file.seek(frames[victim].offset + at)
            file.write(bytes([byte]))

    harm(1000, 2, 0x7F)  # its length, while the broker runs and does not know
    harm(1500, 30, frames[1500].body[10] ^ 1)
    rest = [payload for number, payload in enumerate(messages) if number not in (1000, 1500)]
    with pytest.raises(CorruptFrame, match=rf"orders/0-0 at offset {frames[1000].offset}"):
        read()
    assert read(onCorrupt="skip") == rest
    assert read(onCorrupt="skip", messageTypes="type_a") == rest
    broker.kill()
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "1")
    with caplog.at_level(logging.WARNING):
        assert read(onCorrupt="deadletter", deadLetterTopic="dead") == rest
    assert sum("quarantined by the broker. Stored in dead/0-0" in record.getMessage() for record in caplog.records) == 2
    reasons = read(subscribe="dead")
    assert reasons == [b"", b""]
    assert read(onCorrupt="skip", messageTypes="type_a") == rest
