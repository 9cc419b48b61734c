from __future__ import annotations

from pathlib import Path

import pytest
from tx_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A running broker's transactions on a real disk."""
    return World(tmp_path)
