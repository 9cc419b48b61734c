"""Syncs that the kernel runs: they end, they fail as others do, and where there are none, threads do it."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from metaq_broker.log.sync.kernel_syncs import PENDING_MAX, KernelSyncs

DEADLINE_S = 60.0


@pytest.fixture
def syncs() -> Iterator[KernelSyncs]:
    """A queue of syncs; skips where the kernel offers none to this process."""
    opened = KernelSyncs.open()
    if opened is None:
        pytest.skip("the kernel runs no syncs for this process")
    yield opened
    opened.close()


def ended(syncs: KernelSyncs, count: int) -> list[tuple[int, int]]:
    """What ``take`` returns until ``count`` syncs have ended."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        assert select.select([syncs], [], [], DEADLINE_S)[0], f"only {len(found)} of {count} have ended"
        found += syncs.take()
    return found


def test_each_sync_ends_once_and_says_which_it_was(syncs: KernelSyncs, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert syncs.take() == []
        for turn in range(5):
            file.write(b"x" * 100)
            file.flush()
            tokens = [turn * 10 + number for number in range(4)]
            assert all(syncs.submit(file.fileno(), token) for token in tokens)
            assert sorted(ended(syncs, 4)) == [(token, 0) for token in tokens]
        assert syncs.take() == []
        assert not select.select([syncs], [], [], 0)[0], "nothing is ready when all are taken"


def test_the_file_may_be_closed_while_its_sync_is_under_way(syncs: KernelSyncs, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"x")
        assert syncs.submit(file.fileno(), 1)
    assert ended(syncs, 1) == [(1, 0)]


def test_no_more_are_taken_than_may_be_under_way(syncs: KernelSyncs, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"x")
        taken = [syncs.submit(file.fileno(), token) for token in range(2 * PENDING_MAX)]
        assert taken == [True] * PENDING_MAX + [False] * PENDING_MAX
        assert sorted(ended(syncs, PENDING_MAX)) == [(token, 0) for token in range(PENDING_MAX)]
        assert syncs.submit(file.fileno(), 7)
        assert ended(syncs, 1) == [(7, 0)]


def test_what_cannot_be_synced_is_refused_or_fails(syncs: KernelSyncs) -> None:
    reading, writing = os.pipe()
    try:
        if syncs.submit(writing, 1):
            assert ended(syncs, 1) == [(1, errno.EINVAL)]
        else:
            assert not syncs.submit(writing, 2)
    finally:
        os.close(reading)
        os.close(writing)


def test_nothing_is_taken_behind_the_end(syncs: KernelSyncs, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        syncs.close()
        assert not syncs.submit(file.fileno(), 1)


def test_there_are_none_on_machines_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    assert KernelSyncs.open() is None
