"""The power goes in the middle of some work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from metaq_broker.testing import Fault, FaultyFiles, PowerCut


def ends_before_the_cut(work: Callable[[], object]) -> bool:
    """Do ``work``; return whether it ended, or was stopped by a ``PowerCut``."""
    try:
        work()
    except PowerCut:
        return False
    return True


class Life(Protocol):
    """Work on the files of a folder, which remembers what it was promised."""

    def run(self, files: FaultyFiles) -> None:
        """Do the work."""

    def check(self, files: FaultyFiles) -> None:
        """See whether the promises hold after a restart."""


def each_call(folder: Path, life_in: Callable[[Path], Life]) -> Iterator[tuple[int, Path]]:
    """The number of each call of a life that changes files, from 1, and a folder for the life in which it fails."""
    (folder / "count").mkdir()
    counting = FaultyFiles(folder / "count")
    life_in(folder / "count").run(counting)
    for at in range(1, len(counting.calls) + 1):
        root = folder / str(at)
        root.mkdir()
        yield at, root


def cut_at_every_call(folder: Path, life_in: Callable[[Path], Life], kept: float) -> int:
    """Let the power go at each call that changes files, and twice in a row; return how many calls there are.

    ``kept`` is how much of an interrupted write is there.
    """
    at = 0
    for at, root in each_call(folder, life_in):
        files, life = FaultyFiles(root, Fault(at, None, kept)), life_in(root)
        with pytest.raises(PowerCut):
            life.run(files)
        after = files.crash(Random(at))
        life.check(after)
        life.check(after.crash(Random(at + 1)))
    return at
