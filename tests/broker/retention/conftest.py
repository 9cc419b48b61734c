"""The fixture of the tests of retention runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from retained import Harness


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """No partitions yet: ``add`` them."""
    return Harness(tmp_path)
