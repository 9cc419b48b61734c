"""Scenarios, each with one failure and its own broker and folder. All raise ``PromiseBroken`` for a broken guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from faults.scenarios.disk_full import disk_full
from faults.scenarios.few_files import few_files
from faults.scenarios.rude_clients import rude_clients
from faults.scenarios.stage import Skipped, Stage
from faults.scenarios.stop_under_load import stop_under_load
from faults.scenarios.suspend import suspend

SCENARIOS: Final[Mapping[str, Callable[[Stage], str]]] = {
    "suspend": suspend,
    "stop": stop_under_load,
    "disk-full": disk_full,
    "few-files": few_files,
    "rude": rude_clients,
}
"""Each returns a summary sentence."""

__all__ = ["SCENARIOS", "Skipped", "Stage"]
