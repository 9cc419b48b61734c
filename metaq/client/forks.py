"""What becomes of objects with threads in a process that was forked: threads are not copied, what they share is.

A child must not wait for a thread that it does not have, nor use a lock that another thread may have held. So objects
that have started something are listed here, and notified in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_listed: set[WeakMethod[Callable[[], None]]] = set()


def notify_after_fork(method: Callable[[], None]) -> None:
    """Have a method of an object called in each child of this process, as long as somebody refers to the object.

    It must not use a lock that was made before.
    """
    _listed.add(WeakMethod(method, _listed.discard))


def forked_text(what: str) -> str:
    """The message to a program that uses an object of its parent."""
    return f"{what} belongs to the process {os.getppid()}, which forked this one; make another one here"


def _notify() -> None:
    methods = [method for one in list(_listed) if (method := one()) is not None]
    _listed.clear()
    for method in methods:
        method()


os.register_at_fork(after_in_child=_notify)
