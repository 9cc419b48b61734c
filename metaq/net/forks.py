"""Forked processes: a child shares memory with its parent but has none of its threads.

A child must not wait for a thread that it does not have, nor take a lock that another thread may have held during the
fork. Objects that have started something register here and are notified in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from types import MethodType
from typing import Any, Final, cast
from weakref import ref

_SWEEP: Final = 64
"""Fewest entries that are searched for objects that are gone."""

_numbers = count()
_listed: dict[int, tuple[ref[Any], Callable[[Any], None]]] = {}
"""References to objects, without callbacks, and their functions. A callback in Python, as ``WeakMethod`` has, may run
anywhere when an object is collected, and what Ctrl-C raises there is lost.
"""
_sweep_at = _SWEEP


def notify_after_fork(method: Callable[[], None]) -> None:
    """Call an object's method in each child of this process, as long as the object is referenced.

    The method must not take a lock that was made before the fork. In the children of a child it is called only if it
    calls this function again.
    """
    global _sweep_at
    bound = cast(MethodType, method)
    _listed[next(_numbers)] = ref(bound.__self__), bound.__func__
    if len(_listed) > _sweep_at:  # no lock, which a child might find taken: a number is used once
        for number, (owner, _) in list(_listed.items()):
            if owner() is None:
                _listed.pop(number, None)
        _sweep_at = max(_SWEEP, 2 * len(_listed))


def forked_text(what: str) -> str:
    """Return the error text for a program that uses an object of its parent process."""
    return f"{what} belongs to the process {os.getppid()}, the parent of this one; create another one here"


def _notify() -> None:
    called = list(_listed.values())
    _listed.clear()
    for owner, function in called:
        if (one := owner()) is not None:
            function(one)


os.register_at_fork(after_in_child=_notify)
