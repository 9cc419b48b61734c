"""A follower's state file through power cuts and failing disks at every call: what it reported as durable is there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_records import Generation, decode_state, encode_changes, encode_state, read_header
from metaq_broker.log.state.state_stream import StateStream
from metaq_broker.log.streams.facts import StreamOrigin
from metaq_broker.log.streams.lost_found import Intention
from metaq_broker.log.streams.stream import STATE, StreamBytes, StreamRefused
from metaq_broker.testing import Fault, FaultyFiles, PowerCut
from pair_disks import durable
from stored import each_call

INCARNATION = "a" * 32


def generation(start: int, number: int) -> list[StreamBytes]:
    """The runs of one generation: its header, its entries, and some changes, a record each."""
    entries = {f"key {each}": b"x" * 20 for each in range(number)}
    whole = encode_state(number, entries, Generation(INCARNATION, start))
    size = read_header("", whole).size
    changes = [encode_changes(number, size, 0, [(key, value)]) for key, value in entries.items()]
    ends = [size]
    for change in changes:
        ends.append(ends[-1] + len(change))
    parts = [whole[: ends[1]], *(whole[a:b] for a, b in pairwise(ends[1:]))]
    for each in range(3):
        at = sum(map(len, parts))
        parts.append(encode_changes(number, at, at, [(f"later {each}", b"y" * 30)]))
    runs, at = [], start
    for part in parts:
        runs.append(StreamBytes(at, start, part))
        at += len(part)
    return runs


FIRST = generation(0, 3)
SECOND = generation(FIRST[-1].end, 5)
RUNS = [*FIRST, *SECOND]


class Following:
    """Copies two generations; ``promised`` is how far it reported them as durable, but for unfinished ones."""

    def __init__(self, root: Path) -> None:
        self.path = root / STATE
        self.promised = 0

    def run(self, files: FaultyFiles) -> None:
        asyncio.run(self._run(files))

    async def _run(self, files: Files) -> None:
        stream = StateStream.open(files, self.path)
        if stream.origin is None:
            await stream.create(StreamOrigin(STATE, INCARNATION, 0), 5)
        await self.follow(stream)
        stream.close()

    async def follow(self, stream: StateStream) -> None:
        for run in RUNS:
            if run.offset >= stream.end:
                stream.append_copy(run)
                await durable(stream)
                named = decode_or_none(self.path)
                self.promised = max(self.promised, named)

    def check(self, files: Files) -> None:
        asyncio.run(self._check(files))

    async def _check(self, files: Files) -> None:
        stream = StateStream.open(files, self.path)
        assert stream.loss is None
        assert stream.end >= self.promised
        stream.close()
        await self._run(files)
        assert self.path.read_bytes() == b"".join(run.data for run in SECOND)
        assert len(decode_state(self.path, self.path.read_bytes()).values) == 8

    def check_after_cut(self, files: Files, offset: int) -> None:
        stream = StateStream.open(files, self.path)
        assert stream.loss is None
        assert stream.end in (offset, RUNS[-1].end)
        stream.close()


def decode_or_none(path: Path) -> int:
    """How far the generation with the file's name reaches; 0 without one."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    named = read_header(path, content).generation
    return 0 if named is None else named.start + len(content)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.6, 1.0])
def test_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    count = 0
    for at, root in each_call(tmp_path, Following):
        files, life = FaultyFiles(root, Fault(at, None, kept)), Following(root)
        with contextlib.suppress(PowerCut, StreamRefused):
            life.run(files)
        after = files.crash(Random(at))
        life.check(after)
        count = at
    assert count > 30


@pytest.mark.slow
def test_an_error_at_every_call(tmp_path: Path) -> None:
    for at, root in each_call(tmp_path, Following):
        files, life = FaultyFiles(root, Fault(at, errno.EIO)), Following(root)
        with contextlib.suppress(OSError, StreamRefused):
            life.run(files)
        files.fault = None
        life.check(files.crash(Random(at)))


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, errno.EIO])
def test_a_cut_that_is_interrupted_at_every_call(error: int | None, tmp_path: Path) -> None:
    offset = SECOND[-2].offset
    for at in range(1, 60):
        root = tmp_path / str(at)
        root.mkdir()
        files, life = FaultyFiles(root), Following(root)
        life.run(files)
        files.fault = Fault(at, error)
        files.calls.clear()

        async def cut(files: FaultyFiles = files, life: Following = life) -> None:
            stream = StateStream.open(Files(), life.path)
            stream._files = files
            await stream.cut(Intention(offset, 8, 5, "b"))
            stream.close()

        try:
            asyncio.run(cut())
        except (PowerCut, OSError):
            pass
        else:
            break  # the cut has fewer calls
        files.fault = None
        life.check_after_cut(files.crash(Random(at)), offset)
    assert at > 8
