"""The compiled loop makes the records that plain code makes, of whatever is in the log."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from metaq_broker.rocketmq.messages.compiled_records import OUT_BYTES, RecordMaker

from metaq.errors import CorruptFrame
from metaq.formats.frames import encode_frame, encode_stored
from metaq.formats.message_id import TIME_SHIFT
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.stored_form import STORED_FORM, encode_head
from metaq.formats.stored_records import Collected, QueueRecords, Wanted

BROKER_4, BROKER_6 = host_bytes("127.0.0.1", 10911), host_bytes("::1", 10911)
BORN_4, BORN_6 = host_bytes("10.1.2.3", 4), host_bytes("2001:db8::1", 6)

Outcome = tuple[int | str, Collected]


@pytest.fixture(scope="module")
def making() -> RecordMaker:
    made = RecordMaker(0)
    made.load()
    assert made.compiled
    return made


def stored(body: bytes, tag: bytes = b"", born: bytes = BORN_4, message_id: int = 5 << TIME_SHIFT) -> bytes:
    """A frame of a RocketMQ client."""
    return encode_stored(tag, encode_head(5, 1, 6, born, 7, 8), b"KEYS\x01k\x02", body, message_id)


def together(collected: Collected) -> Collected:
    """The same with all records in one element."""
    return replace(collected, records=[b"".join(collected.records)])


def both(making: RecordMaker, run: bytes, wanted: Wanted, queue: QueueRecords, made_before: int = 0) -> list[Outcome]:
    """What the compiled loop and the plain one make of a run: bytes passed or the error, and what was collected."""
    outcomes: list[Outcome] = []
    for make in (partial(making.of_run, queue), queue.of_run):
        collected = Collected(wanted, [b"r"] * made_before, made_before, made_before, made_before)
        passed: int | str
        try:
            passed = make(run, 1000, 50, 7 << 40, 99, collected, "orders-3")
        except CorruptFrame as error:
            passed = str(error)
        outcomes.append((passed, together(collected)))
    return outcomes


@pytest.mark.parametrize("seed", range(10))
def test_it_makes_what_plain_code_makes(making: RecordMaker, seed: int) -> None:
    dice = random.Random(seed)

    def frame() -> bytes:
        body, message_id = dice.randbytes(dice.randrange(300)), dice.choice([-7, 0, 9 << TIME_SHIFT, (1 << 63) - 1])
        kind = dice.randrange(12)
        if kind == 0:
            return encode_frame(message_id, dice.randrange(4), body)
        if kind == 1:
            return stored(body, b"tag", BORN_6, message_id)
        made = stored(body, dice.choice([b"", b"tag", "标签".encode()]), BORN_4, message_id)
        if kind == 2:
            at = dice.randrange(len(made))
            return made[:at] + bytes([made[at] ^ 1 << dice.randrange(8)]) + made[at + 1 :]
        if kind == 3:  # a checksum that is right, over an attribute that may be anything
            changed = bytearray(made[20:])
            changed[dice.randrange(min(80, len(changed)))] = dice.randrange(256)
            return encode_frame(message_id, STORED_FORM, bytes(changed))
        return made

    broker = dice.choice([BROKER_4, BROKER_4, BROKER_4, BROKER_6])
    queue = QueueRecords(dice.choice(["orders", "t" * 127, "t" * 128]), 3, broker)
    for _ in range(50):
        run = b"".join(frame() for _ in range(dice.randrange(1, 30)))
        run = run[: dice.choice([len(run), dice.randrange(len(run) + 1)])]
        wanted = Wanted(
            dice.choice([1, 5, 100]),
            dice.choice([1, 900, 3000, 1 << 20]),
            dice.choice([1, 7, 1000]),
            dice.choice([None, None, {b"tag"}]),
            dice.choice([None, None, lambda properties: "KEYS" in properties]),
        )
        made_before = min(dice.choice([0, 0, 0, 3]), wanted.messages_max - 1, wanted.looked_at_max - 1)
        mine, plain = both(making, run, wanted, queue, made_before)
        assert mine == plain


def test_many_and_large_records_take_several_calls(making: RecordMaker) -> None:
    queue = QueueRecords("orders", 3, BROKER_4)
    many = OUT_BYTES // len(stored(b"x"))  # a record is larger than a frame
    for run, count in ((stored(b"x") * many, many), (stored(bytes(200_000)) * 5, 5)):
        for wanted in (Wanted(100_000, 1 << 23, 100_000), Wanted(many, 1 << 23, 100_000)):
            collected, passed = Collected(wanted), 0
            while passed < len(run) and not collected.is_full:
                passed += making.of_run(
                    queue, run[passed:], 1000 + passed, 50 + collected.looked_at, 7 << 40, 99, collected, "orders-3"
                )
            plainly = Collected(wanted)
            assert queue.of_run(run, 1000, 50, 7 << 40, 99, plainly, "orders-3") == passed
            assert together(collected) == together(plainly)
            assert collected.looked_at == min(count, wanted.messages_max)


def test_a_large_message_is_made_by_plain_code(making: RecordMaker) -> None:
    queue = QueueRecords("orders", 3, BROKER_4)
    run = stored(b"small") + stored(bytes(OUT_BYTES)) + stored(b"small")
    for wanted in (Wanted(10, 1 << 23, 100), Wanted(2, 1 << 23, 100), Wanted(10, 1, 100)):
        collected = Collected(wanted)
        passed = making.of_run(queue, run, 1000, 50, 7 << 40, 99, collected, "orders-3")
        while passed < len(run) and not collected.is_full:
            rest = run[passed:]
            passed += making.of_run(
                queue, rest, 1000 + passed, 50 + collected.looked_at, 7 << 40, 99, collected, "orders-3"
            )
        plainly = Collected(wanted)
        assert queue.of_run(run, 1000, 50, 7 << 40, 99, plainly, "orders-3") == passed
        assert together(plainly) == together(collected)


def test_it_is_loaded_after_so_many_bytes_and_not_before() -> None:
    run = stored(b"body")
    made, queue = RecordMaker(len(run)), QueueRecords("orders", 3, BROKER_4)
    for expected in (False, True):
        made.of_run(queue, run, 1000, 50, 7 << 40, 99, Collected(Wanted(10, 1000, 10)), "orders-3")
        assert made.loading is expected
    made.join()
    assert made.compiled
