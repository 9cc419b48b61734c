"""How many examples a property test tries: fewer in `make test-fast`."""

from __future__ import annotations

import os
from typing import Final

FAST: Final = bool(os.environ.get("METAQ_FAST_TESTS"))
FEW: Final = 25


def examples(count: int) -> int:
    """``count``, or in `make test-fast` no more than a few."""
    return min(count, FEW) if FAST else count
