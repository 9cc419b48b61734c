"""A mirror in one process: failures in the middle, partitions that come later, its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_client import TIMEOUTS

from metaq.backends.metaq.pool import SessionPool
from metaq.client.metaq import MetaQ
from metaq.errors import MetaqError, SendFailed, StoreFailed
from metaq.formats.frames import HEADER_BYTES, encode_frame
from metaq.model import Address, Partition
from metaq.operate.mirror.mirror import Mirror
from metaq.operate.mirror.progress import ProgressFile
from metaq.protocols.text.commands import Command, Put, PutBatch
from metaq.testing.memory import MemoryBroker, MemoryTransport

SIZE = HEADER_BYTES + 3


class Bench:
    """A source with two partitions of "t", of which one has messages, and a target with three."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.here, self.there = MemoryBroker({"t": 2}), MemoryBroker({"t": 3}, broker_id=7)
        self.source, self.target = MetaQ("127.0.0.1:8123"), MetaQ("127.0.0.1:8124")
        self.store(0, 0, 4)

    def store(self, index: int, begin: int, end: int) -> None:
        frames = b"".join(encode_frame(1, 0, b"%d-%d" % (index, number)) for number in range(begin, end))
        self.here.partition("t", index).append(frames)

    def progress(self, target: str = "there") -> ProgressFile:
        return ProgressFile(self.path, "here", target, "")

    def copied(self) -> list[str]:
        return [f"{one.partition} {one.data.decode()}" for one in self.target.browse("t")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    transport = MemoryTransport({})
    monkeypatch.setattr("metaq.client.metaq.SessionPool", lambda *_: SessionPool(TIMEOUTS, transport, transport.clock))
    bench = Bench(tmp_path / "mirrors" / "m.json")
    transport.brokers |= {Address("127.0.0.1", 8123): bench.here, Address("127.0.0.1", 8124): bench.there}
    with bench.source, bench.target:
        yield bench


def test_after_a_failure_the_same_mirror_goes_on(bench: Bench) -> None:
    bench.store(1, 0, 4)
    with bench.progress() as progress:
        mirror = Mirror(bench.source, bench.target, ["t"], progress)
        mirror.settle()
        bench.there.before_command = lambda asked: bench.there.kill() if _is_put(asked, 1) else None
        with pytest.raises(SendFailed):
            mirror.copy()
        assert {one.partition: one.position for one in mirror.copied} == {Partition(0, 0): 4 * SIZE}
        assert json.loads(bench.path.read_text())["topics"]["t"]["0-1"] == {"to": "7-1", "next": None}
        bench.there.before_command = lambda asked: None
        bench.there.start()
        bench.store(0, 4, 5)
        assert mirror.copy() == 5
        assert mirror.copy() == 0
    assert bench.copied() == [
        *(f"7-0 0-{number}" for number in range(5)),
        *(f"7-1 1-{number}" for number in [*range(4), *range(4)]),
    ], "the answer to the second partition's block was lost"


def test_what_is_acknowledged_before_a_refusal_is_not_copied_again(bench: Bench) -> None:
    count, block = 1500, 1000
    bench.store(1, 0, count)
    bench.here.partition("t", 1).append(encode_frame(1, 0, b"long" * 9))
    bench.there.message_bytes_max = 30
    with bench.progress() as progress:
        mirror = Mirror(bench.source, bench.target, ["t"], progress)
        mirror.settle()
        for _ in range(2):
            with pytest.raises(SendFailed, match="longer than 30 bytes"):
                mirror.copy()
            assert [(str(one.partition), one.messages) for one in mirror.copied] == [("0-0", 4), ("0-1", block)]
    bench.there.message_bytes_max = 100
    with bench.progress() as progress:
        mirror = Mirror(bench.source, bench.target, ["t"], progress)
        mirror.settle()
        assert mirror.copy() == count + 1 - block
    assert len(bench.copied()) == 4 + count + 1


def _is_put(asked: Command, partition: int) -> bool:
    return isinstance(asked, Put | PutBatch) and asked.partition == partition


def test_a_source_that_is_away_is_read_on_from_where_it_was(bench: Bench) -> None:
    with bench.progress() as progress:
        mirror = Mirror(bench.source, bench.target, ["t"], progress)
        mirror.settle()
        assert mirror.copy() == 4
        bench.here.kill()
        with pytest.raises(MetaqError):
            mirror.copy()
        bench.here.start()
        bench.store(0, 4, 6)
        assert mirror.copy() == 2
    assert bench.copied() == [f"7-0 0-{number}" for number in range(6)]


def test_where_a_mirror_begins_outlives_a_run_that_fails_at_once(bench: Bench) -> None:
    with bench.progress() as progress:
        Mirror(bench.source, bench.target, ["t"], progress, start="latest").settle()
    bench.store(0, 4, 6)
    bench.store(1, 0, 1)
    with bench.progress() as progress:
        mirror = Mirror(bench.source, bench.target, ["t"], progress, start="latest")
        mirror.settle()
        assert mirror.copy() == 3
    assert bench.copied() == ["7-0 0-4", "7-0 0-5", "7-1 1-0"]


def test_a_partition_that_comes_gets_the_next_free_target(bench: Bench) -> None:
    with bench.progress() as progress:
        mirror = Mirror(bench.source, bench.target, ["t"], progress)
        mirror.settle()
        mirror.copy()
        bench.here.topics["t"] = 3
        bench.store(2, 0, 1)
        assert mirror.copy() == 1
        bench.here.topics["t"] = 4
        bench.store(3, 0, 1)
        with pytest.raises(
            ValueError, match="4 partitions at the source, only 3 at the target, and none is left for 0-3"
        ):
            mirror.copy()
    assert bench.copied()[-1] == "7-2 2-0"


def test_the_file_is_used_by_one_mirror_at_a_time(bench: Bench) -> None:
    with bench.progress() as progress:
        Mirror(bench.source, bench.target, ["t"], progress).settle()
        with pytest.raises(StoreFailed, match="another mirror uses it"), bench.progress():
            pass
    with pytest.raises(StoreFailed, match="with target 'there', not 'elsewhere'"), bench.progress("elsewhere"):
        pass
    with bench.progress() as progress:
        assert progress.topics["t"].targets == {Partition(0, 0): Partition(7, 0), Partition(0, 1): Partition(7, 1)}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"v": 1}', '{"v": 1, "source": "here", "target": "there", "prefix": "", "topics": {"t": 1}}'],
)
def test_a_damaged_file_is_not_taken_for_a_new_one(bench: Bench, text: str) -> None:
    bench.path.parent.mkdir()
    bench.path.write_text(text)
    with pytest.raises(StoreFailed, match=r"m\.json cannot be used: it is not a progress file of"), bench.progress():
        pass
    assert bench.path.read_text() == text
