"""The engine without any protocol: closed partitions, the order of checks, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from metaq_broker.clock import Clock
from metaq_broker.config.configuration import parse
from metaq_broker.engine.engine import ANY_PARTITION, Engine
from metaq_broker.engine.outcomes import Appended, BlockAppended, PartitionClosed, PartitionLimit, Refusal
from metaq_broker.engine.stores import TopicStores
from metaq_broker.frontends.text.refusals import RefusalTexts
from metaq_broker.monitoring.statistics import Statistics
from metaq_broker.storage.files import Files
from metaq_broker.storage.flush import GroupCommit
from metaq_broker.storage.reads import Slice

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import IdWorker

Scenario = Callable[[Engine], None]


def play(folder: Path, scenario: Scenario, more: str = "") -> None:
    """Run a story on the loop thread of an engine with topic ``t`` of four partitions."""

    async def run() -> None:
        text = (
            "[system]\nbrokerId=5\nnumPartitions=4\nunflushThreshold=0\nunflushInterval=1000\nmaxSegmentSize=4096\n"
            f"maxTransferSize=1024\ndataPath={folder}\n{more}[topic=t]\n"
        )
        config, clock = parse(text.encode()), Clock()
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


def put(engine: Engine, partition: int, topic: str = "t") -> Appended | Refusal:
    return engine.put(topic, partition, [0], [-1], [b"x"])


def test_a_closed_partition_refuses_puts_and_gets_and_can_be_opened_again(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        assert isinstance(put(engine, 2), Appended)
        engine.close_partition("t", 2)
        refused = put(engine, 2)
        assert refused == PartitionClosed(2)
        said = (
            "Put message to [broker 'meta://here:8123'] [partition 't-2'] failed.Detail:partition[5-2] has been closed"
        )
        assert TEXTS.put("t", 2, PartitionClosed(2)) == (403, said)
        assert engine.get("t", 2, 0, 100) == engine.get_types("t", 2, 0, 100, ["a"]) == PartitionClosed(2)
        assert TEXTS.get("t", 2, PartitionClosed(2)) == (403, "Partition[5-2] has been closed")
        assert engine.offset("t", 2, 0, "segment") == 0, "the offset command ignores closing, as in MetaQ"
        engine.open_partition("t", 2)
        assert isinstance(put(engine, 2), Appended)

    play(tmp_path, scenario)


def test_a_random_partition_is_never_a_closed_one(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        for closed in (0, 1, 3):
            engine.close_partition("t", closed)
        assert {engine.pick_partition("t") for _ in range(100)} == {2}
        engine.close_partition("t", 2)
        assert engine.pick_partition("t") == ANY_PARTITION
        assert put(engine, ANY_PARTITION) == PartitionClosed(ANY_PARTITION)

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
        refused = put(engine, partition, topic)
        assert isinstance(refused, Refusal)
        assert TEXTS.plain(refused) == (code, detail)

    play(tmp_path, scenario)


def test_no_more_partitions_are_made_than_allowed(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        assert isinstance(put(engine, 0), Appended)
        assert isinstance(put(engine, 1), Appended)
        assert put(engine, 2) == PartitionLimit("the broker has 2 partitions, maxPartitions allows no more")
        assert isinstance(put(engine, 0), Appended)

    play(tmp_path, scenario, "maxPartitions=2\n")


def test_a_block_is_never_divided_by_a_roll_and_a_run_of_puts_is(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        frame = encode_frame(0, 0, b"x" * 980)
        block = engine.put_block("t", 0, frame * 10, 10)
        assert isinstance(block, BlockAppended)
        run = engine.put("t", 1, [0] * 10, [-1] * 10, [b"x" * 980] * 10)
        assert isinstance(run, Appended)
        assert list(run.offsets) == list(range(0, 10_000, 1000))

    play(tmp_path, scenario)
    assert _sizes(tmp_path / "t-0") == [10_000, 0]
    assert _sizes(tmp_path / "t-1") == [5000, 5000, 0]


def _sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(folder.glob("*.meta"))]


def test_a_frame_longer_than_the_transfer_size_is_sent_whole_to_who_asks_for_so_much(tmp_path: Path) -> None:
    def scenario(engine: Engine) -> None:
        small, large = b"s" * 80, b"l" * 3000
        for body in (small, large, small, small):
            assert isinstance(engine.put("t", 0, [0], [-1], [body]), Appended)
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
