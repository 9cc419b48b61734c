"""The engine without any protocol: closed partitions, the order of checks, limits."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.clock import Clock
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import ANY_PARTITION, Engine
from metaq_broker.log.engine.outcomes import (
    AllRejected,
    Appended,
    BlockInvalid,
    ChecksumMismatch,
    PartitionClosed,
    PartitionLimit,
    PartitionUnknown,
    Refusal,
    TooLarge,
    TopicReserved,
)
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.reads import Slice
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import parse
from metaq_broker.statistics import Statistics
from metaq_broker.text.refusals import RefusalTexts
from stored import put
from waiting import in_loop

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker

Scenario = Callable[[Engine], None]

FIRST_IS_WRONG = "frame 0 at byte 0 fails its checksum"


def ini_text(folder: Path, more: str = "") -> str:
    return system_section(5, 4, maxSegmentSize=4096, maxTransferSize=1024, dataPath=folder) + more + "[topic=t]\n"


def play(folder: Path, scenario: Scenario, more: str = "") -> None:
    """Run a story on the loop thread of an engine with topic ``t`` of four partitions."""

    async def run() -> None:
        config, clock = parse(ini_text(folder, more).encode()), Clock()
        stores, commit = TopicStores.open(Files(), clock, config), GroupCommit()
        statistics = Statistics(clock.monotonic, lambda topic: False)
        try:
            scenario(Engine(config, stores, commit, IdWorker(5), clock, statistics))
            await commit.drain()
        finally:
            commit.stop()
            stores.close(clean=True)

    asyncio.run(run())


TEXTS = RefusalTexts(5, "here", 8123)


def test_a_closed_partition_refuses_puts_and_gets_and_can_be_opened_again(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        assert isinstance(put(engine, "t", 2), Appended)
        engine.close_partition("t", 2)
        refused = put(engine, "t", 2)
        assert refused == PartitionClosed(2)
        said = (
            "Put message to [broker 'meta://here:8123'] [partition 't-2'] failed.Detail:partition[5-2] has been closed"
        )
        assert TEXTS.put("t", 2, PartitionClosed(2)) == (403, said)
        assert engine.get("t", 2, 0, 100) == engine.get_types("t", 2, 0, 100, ["a"]) == PartitionClosed(2)
        assert TEXTS.get("t", 2, PartitionClosed(2)) == (403, "Partition[5-2] has been closed")
        assert engine.offset("t", 2, 0, "segment") == 0, "the offset command ignores closing, as in MetaQ"
        engine.open_partition("t", 2)
        assert isinstance(put(engine, "t", 2), Appended)

    play(tmp_path, scenario)


def test_a_random_partition_is_never_a_closed_one(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        for closed in (0, 1, 3):
            engine.close_partition("t", closed)
        assert {engine.pick_partition("t") for _ in range(100)} == {2}
        engine.close_partition("t", 2)
        assert engine.pick_partition("t") == ANY_PARTITION
        assert put(engine, "t", ANY_PARTITION) == PartitionClosed(ANY_PARTITION)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("topic", "partition", "code", "detail"),
    [
        ("t", 4, 500, "wrong partition 4"),
        ("t", -2, 500, "wrong partition -2"),
        ("other", 0, 500, "The server do not accept topic other"),
        ("other", 99, 500, "The server do not accept topic other"),
        ("other", 3, 403, "partition[5-3] has been closed"),
    ],
)
def test_the_order_of_checks(topic: str, partition: int, code: int, detail: str, tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        engine.close_partition("other", 3)
        refused = put(engine, topic, partition)
        assert isinstance(refused, Refusal)
        assert TEXTS.plain(refused) == (code, detail)

    play(tmp_path, scenario)


def test_a_name_that_is_a_pattern_is_refused_unless_stored(tmp_path: Path) -> None:
    def refused(engine: Engine) -> None:
        outcome = put(engine, "!@#$%", 0)
        assert isinstance(outcome, Refusal)
        assert TEXTS.plain(outcome) == (500, "The server do not accept topic !@#$%")
        assert not (tmp_path / "!@#$%-0").exists()

    def accepted(engine: Engine) -> None:
        assert isinstance(put(engine, "!@#$%", 0), Appended)

    play(tmp_path, refused, "[topic=!@#$%]\n")
    play(tmp_path, accepted, "[topic=*]\n")
    play(tmp_path, accepted, "[topic=!@#$%]\n")


def test_no_more_partitions_are_made_than_allowed(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        assert isinstance(put(engine, "t", 0), Appended)
        assert isinstance(put(engine, "t", 1), Appended)
        assert put(engine, "t", 2) == PartitionLimit("the broker has 2 partitions, maxPartitions allows no more")
        assert isinstance(put(engine, "t", 0), Appended)

    play(tmp_path, scenario, "maxPartitions=2\n")


def test_a_block_is_never_divided_by_a_roll_and_a_run_of_puts_is(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        for partition, independent in ((0, False), (1, True)):
            outcome = put(engine, "t", partition, [b"x" * 980] * 10, independent=independent)
            assert isinstance(outcome, Appended)
            assert (outcome.first_offset, outcome.end_offset) == (0, 10_000)

    play(tmp_path, scenario)
    assert _sizes(tmp_path / "t-0") == [10_000, 0]
    assert _sizes(tmp_path / "t-1") == [5000, 5000, 0]


def _sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(folder.glob("*.meta"))]


def test_a_frame_beyond_the_transfer_size_is_sent_whole_on_request(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        small, large = b"s" * 80, b"l" * 3000
        for body in (small, large, small, small):
            assert isinstance(put(engine, "t", 0, [body]), Appended)
        log = engine.stores.get("t", 0)
        assert log is not None
        log.sync()
        at = 20 + len(small)

        def length(offset: int, bytes_max: int) -> int:
            found = engine.get("t", 0, offset, bytes_max)
            assert isinstance(found, Slice)
            assert found.offset == offset
            return found.length

        assert length(at, 1 << 20) == 20 + len(large)
        assert length(at, 20 + len(large)) == 20 + len(large)
        # Not to those who ask for less, nor where the message is not the first one: as before.
        assert length(at, 20 + len(large) - 1) == 1024
        assert length(0, 1 << 20) == 1024
        assert length(at + 1, 1 << 20) == 1024
        assert length(at + 20 + len(large), 1 << 20) == 200

    play(tmp_path, scenario)


@in_loop
async def test_an_append_returns_positions_and_calls_back_when_durable(tmp_path: Path) -> None:
    config, clock = parse(ini_text(tmp_path).encode()), Clock()
    stores, commit = TopicStores.open(Files(), clock, config), GroupCommit()
    engine = Engine(config, stores, commit, IdWorker(5), clock, Statistics(clock.monotonic, lambda topic: False))
    durable: list[Refusal | None] = []
    ends: list[int] = []
    engine.watch("t", 0, ends.append)
    for number in range(2):
        outcome = put(engine, "t", 0, [b"a", b"bc"], durable.append, independent=bool(number))
        assert isinstance(outcome, Appended)
        assert (outcome.first_offset, outcome.end_offset) == (43 * number, 43 * (number + 1))
        assert (outcome.partition, outcome.first_ordinal, outcome.ids.count) == (0, 2 * number, 2)
        assert durable == [], "never before it returns"
    await commit.drain()
    assert durable == [None, None]
    assert ends[-1] == 86
    commit.stop()
    stores.close(clean=True)


def unit(partition: int, frames: list[bytes], terms: Terms) -> Append:
    return Append("t", partition, FrameBlock.of(frames), terms)


def test_only_the_broker_itself_puts_to_a_reserved_topic(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        durable: list[Refusal | None] = []
        frame = encode_frame(0, 0, b"body")
        engine.config = dataclasses.replace(engine.config, reserved_topics=frozenset({"t"}))
        assert engine.append(unit(0, [frame], Terms.BLOCK), durable.append) == TopicReserved("t")
        assert engine.log_for_put("t", 0) == TopicReserved("t")
        assert isinstance(engine.append(unit(0, [frame, frame], Terms.MADE), durable.append), Appended)
        assert engine.append(unit(99, [frame], Terms.MADE), durable.append) == PartitionUnknown(99)

    play(tmp_path, scenario)


@pytest.mark.parametrize("independent", [False, True])
def test_one_wrong_message_costs_a_batch_and_not_the_others_of_a_run(independent: bool, tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        durable: list[Refusal | None] = []
        frames = [encode_frame(0, 0, b"good"), encode_frame(0, 0, b"wrong", 1), encode_frame(0, 0, b"x" * 3000)]
        terms = Terms.PUTS if independent else Terms.BLOCK
        outcome = engine.append(unit(0, frames, terms), durable.append)
        if independent:
            assert isinstance(outcome, Appended)
            assert outcome.rejected == {1: ChecksumMismatch(), 2: TooLarge(3000, 2000)}
            assert (outcome.end_offset, outcome.ids.count) == (24, 1)
        else:
            assert outcome == BlockInvalid("frame 1 at byte 24 fails its checksum")
        wrong = engine.append(unit(1, frames[1:2], terms), durable.append)
        assert wrong == (AllRejected({0: ChecksumMismatch()}) if independent else BlockInvalid(FIRST_IS_WRONG))
        cut = engine.append(Append("t", 1, FrameBlock(frames[0][:-1], 1), terms), durable.append)
        assert isinstance(cut, BlockInvalid)
        assert engine.stores.get("t", 1) is None, "no partition is made for that"

    play(tmp_path, scenario, "maxMessageSize=2000\n")
