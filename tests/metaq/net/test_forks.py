"""Which methods are called in forked processes."""

from __future__ import annotations

import subprocess
import sys
from weakref import getweakrefs

from forked import in_child

from metaq.net import forks
from metaq.net.forks import notify_after_fork


class Counted:
    """Counts how often it was told of a fork; asks for it again in the child if ``again``."""

    def __init__(self, *, again: bool) -> None:
        self.told, self._again = 0, again
        notify_after_fork(self.note)

    def note(self) -> None:
        self.told += 1
        if self._again:
            notify_after_fork(self.note)


def test_a_name_is_looked_up_without_an_import() -> None:
    """The first look-up of a name imports this module unless it is there; a child forked meanwhile would hang."""
    program = "import sys, metaq.net.transport; print('encodings.idna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"True\n"


def test_a_child_is_told_and_its_children_if_it_asks_again() -> None:
    once, always = Counted(again=False), Counted(again=True)

    def child() -> bool:
        return (once.told, always.told) == (1, 1) and in_child(lambda: (once.told, always.told) == (1, 2))

    assert in_child(child)
    assert (once.told, always.told) == (0, 0)


def test_an_object_that_is_collected_runs_no_code_and_leaves_no_entry() -> None:
    """Ctrl-C in a callback of a reference is lost: a command would go on to wait for its server."""
    kept = Counted(again=False)
    assert [one.__callback__ for one in getweakrefs(kept)] == [None]
    for _ in range(10 * len(forks._listed) + 1000):
        Counted(again=False)
    gone = [owner for owner, _ in forks._listed.values() if owner() is None]
    assert len(gone) <= len(forks._listed) // 2 + 64
    assert in_child(lambda: kept.told == 1)
