"""The invariants at the top of the partition log: each has tests that name it, and no test names another one."""

from __future__ import annotations

import re
from pathlib import Path

from metaq_broker.log.partitions import partition_log

TESTS = Path(__file__).parents[1]


def test_each_invariant_is_named_by_a_test() -> None:
    stated = re.findall(r"^(I\d+)\. ", partition_log.__doc__ or "", flags=re.MULTILINE)
    assert stated == [f"I{number}" for number in range(1, 9)]
    named = {
        name
        for path in TESTS.rglob("test_*.py")
        for line in re.findall(r"^# (I\d+(?:, I\d+)*)$", path.read_text(), flags=re.MULTILINE)
        for name in line.split(", ")
    }
    assert named == set(stated)
