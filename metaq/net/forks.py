"""Forked processes: a child shares memory with its parent but has none of its threads.

A child must not wait for a thread that it does not have, nor take a lock that another thread may have held during the
fork. Objects that have started something register here and are notified in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_listed: set[WeakMethod[Callable[[], None]]] = set()


def notify_after_fork(method: Callable[[], None]) -> None:
    """Call an object's method in each child of this process, as long as the object is referenced.

    The method must not take a lock that was made before the fork. In the children of a child it is called only if it
    calls this function again.
    """
    _listed.add(WeakMethod(method, _listed.discard))


def forked_text(what: str) -> str:
    """Return the error text for a program that uses an object of its parent process."""
    return f"{what} belongs to the process {os.getppid()}, the parent of this one; create another one here"


def _notify() -> None:
    methods = [method for one in list(_listed) if (method := one()) is not None]
    _listed.clear()
    for method in methods:
        method()


os.register_at_fork(after_in_child=_notify)
