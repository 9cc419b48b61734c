"""Whether some work comes to its end before the power goes."""

from __future__ import annotations

from collections.abc import Callable

from metaq_broker.testing import PowerCut


def ends_before_the_cut(work: Callable[[], object]) -> bool:
    """Do ``work``; return whether it ended, or was stopped by a ``PowerCut``."""
    try:
        work()
    except PowerCut:
        return False
    return True
