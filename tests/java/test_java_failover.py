"""MetaQ's own producer and consumer at a pair that elects its master: nothing acknowledged is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fix_spark import named

from faults.java_failover.__main__ import main

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_metaqs_own_clients_go_on_through_failovers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of each fault: killed, frozen, switched, frozen for a while."""
    named("METAQ_JAVA_LIB")
    assert main(["--rounds", "4", "--clients", "metaq", "--folder", str(tmp_path / "run"), "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^MetaQ, ZooKeeper: [1-9]\d* acknowledged, 0 not consumed, ", said, re.MULTILINE), said
    assert "both copies are the same bytes" in said
