"""The mark of the state file: an older copy is noticed, a newer one and a restart are not; numbers are given once."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_mark import FILE_NAME, KEY, NUMBERS_AT_ONCE, StateMark
from metaq_broker.log.state.state_table import LoopDriver, StateTable
from stored import QuickFiles

from metaq.model import Buffer

STATE = "rocketmq-state"


class Life:
    """One life of a broker's state."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.table = StateTable.open(files, folder / STATE, LoopDriver())
        self.mark = StateMark.open(files, folder, self.table)
        self.mark.note()

    async def change(self, value: bytes = b"x") -> None:
        """Change something, and wait until that is on the disk."""
        done = asyncio.get_running_loop().create_future()
        self.table.put("offset/t/g/0", value, done.set_result)
        assert await done is None

    async def noted(self) -> None:
        """Wait until the file says what the table has counted."""
        async with asyncio.timeout(60):
            while (self.table.get(KEY) or b"") not in _content(self.folder).split():
                await asyncio.sleep(0.002)

    def copy(self) -> bytes:
        return (self.folder / STATE).read_bytes()


def _content(folder: Path) -> bytes:
    path = folder / FILE_NAME
    return path.read_bytes() if path.exists() else b""


Scenario = Callable[[Life], Awaitable[None]]


def live(folder: Path, scenario: Scenario, files: Files | None = None, clean: bool = True) -> int:
    """One life; return how far the state was behind at its start."""

    async def run() -> int:
        life = Life(folder, files or QuickFiles())
        try:
            await scenario(life)
            return life.mark.behind
        finally:
            if clean:
                life.mark.close()
            else:
                life.table.close()

    return asyncio.run(run())


async def work(life: Life) -> None:
    await life.change()
    await life.noted()


@pytest.mark.parametrize("clean", [True, False])
def test_restarts_are_not_older(tmp_path: Path, clean: bool) -> None:
    assert [live(tmp_path, work, clean=clean) for _ in range(4)] == [0] * 4


@pytest.mark.parametrize("clean", [True, False])
def test_a_copy_from_before_the_last_start_is_older(tmp_path: Path, clean: bool) -> None:
    live(tmp_path, work)
    copy = (tmp_path / STATE).read_bytes()
    live(tmp_path, work, clean=clean)
    (tmp_path / STATE).write_bytes(copy)
    assert live(tmp_path, work) > 0
    assert live(tmp_path, work) == 0


def test_a_copy_that_was_made_while_it_ran_is_older(tmp_path: Path) -> None:
    copies = []

    async def scenario(life: Life) -> None:
        await work(life)
        copies.append(life.copy())
        await life.change(b"y")
        life.mark.note()
        await life.noted()
        copies.append(life.copy())

    live(tmp_path, scenario, clean=False)
    for copy, is_older in zip(copies, (True, False), strict=True):
        mark = _content(tmp_path)
        (tmp_path / STATE).write_bytes(copy)
        assert (live(tmp_path, work) > 0) is is_older
        (tmp_path / FILE_NAME).write_bytes(mark)


def test_a_state_that_is_gone_is_older(tmp_path: Path) -> None:
    live(tmp_path, work)
    (tmp_path / STATE).unlink()
    assert live(tmp_path, work) > 0


@pytest.mark.parametrize("content", [b"", b"junk", b"metaq-state-mark 1\n9 9\ncrc32 00000000\n", None])
def test_a_mark_that_is_damaged_or_gone_says_nothing(tmp_path: Path, content: bytes | None) -> None:
    live(tmp_path, work)
    if content is None:
        (tmp_path / FILE_NAME).unlink()
    else:
        (tmp_path / FILE_NAME).write_bytes(content)
    assert live(tmp_path, work) == 0
    assert live(tmp_path, work) == 0


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    async def scenario(life: Life) -> None:
        await work(life)
        life.mark.note()
        await life.noted()
        before = life.table.changes
        life.mark.note()
        assert life.table.changes == before

    live(tmp_path, scenario)


def test_numbers_are_given_once_whatever_becomes_of_the_state(tmp_path: Path) -> None:
    firsts = []

    async def scenario(life: Life) -> None:
        first = life.mark.first_number
        firsts.append(first)
        for number in range(first, first + NUMBERS_AT_ONCE + 1):
            life.mark.reserve(number)

    for _ in range(3):
        live(tmp_path, scenario, clean=False)
        (tmp_path / STATE).unlink()
    assert firsts[0] == 0
    assert firsts[1] > NUMBERS_AT_ONCE
    assert firsts[2] > firsts[1] + NUMBERS_AT_ONCE


class Refusing(QuickFiles):
    """Replaces no file, once it is told so."""

    refuses = False

    def write_atomic(self, path: Path, data: Buffer) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "no space")
        super().write_atomic(path, data)


def test_a_disk_that_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Refusing()

    async def scenario(life: Life) -> None:
        await work(life)
        files.refuses = True
        with pytest.raises(OSError, match="no space"):
            life.mark.reserve(5)
        await life.change(b"y")

    assert live(tmp_path, scenario, files) == 0
    assert "the mark of the state file is not written" in caplog.messages
    assert live(tmp_path, work) == 0
