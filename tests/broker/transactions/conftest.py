from __future__ import annotations

from pathlib import Path

import pytest
from tx_harness import Harness


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A running broker's transactions on a real disk."""
    return Harness(tmp_path)
