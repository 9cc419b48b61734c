"""A short version of ``python -m faults.groups``: each start and each fault once."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from faults.groups import broker_rounds, rounds

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("registry", [rounds, broker_rounds], ids=["zookeeper", "brokers"])
def test_rounds_lose_nothing_and_repeat_little(tmp_path: Path, registry: ModuleType) -> None:
    described: list[str] = []
    figures = registry.run(tmp_path, len(registry.FAULTS), 7, described.append)
    assert sum("all is handled" in line for line in described) == len(registry.FAULTS)
    assert set(figures.rounds) == set(registry.FAULTS)
    assert figures.sent > 100
