"""The fixture of the tests of retention runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from retained import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """No partitions yet: ``add`` them."""
    return World(tmp_path)
