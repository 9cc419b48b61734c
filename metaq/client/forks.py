"""What becomes of objects with threads in a process that was forked: threads are not copied, what they share is.

A child must not wait for a thread that it does not have, nor use a lock that another thread may have held. So objects
that have started something are listed here, and told in the child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """An object that has threads, or files that only one process may use."""

    def forked(self) -> None:
        """This process is a child of the one that the object belongs to. Must not use a lock made before."""


_listed: WeakSet[Forked] = WeakSet()


def tell_after_fork(one: Forked) -> None:
    """Have ``one.forked`` called in each child of this process, as long as somebody refers to ``one``."""
    _listed.add(one)


def forked_text(what: str) -> str:
    """What a program is told that uses an object of its parent."""
    return f"{what} belongs to the process {os.getppid()}, which forked this one; make another one here"


def _tell() -> None:
    for one in list(_listed):
        _listed.discard(one)
        one.forked()


os.register_at_fork(after_in_child=_tell)
