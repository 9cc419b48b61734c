"""RocketMQ's own Java clients at a pair that elects its master, over name servers of each kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.java_failover.__main__ import RELEASES, main
from peers.rocketmq.jars import Unavailable, release

pytestmark = [pytest.mark.process, pytest.mark.slow]

POLL_MS = "1000"
"""How often the clients ask for routes; by default they wait for half a minute, and each round with them."""

PLACES = ("metaq-namesrv", "name server 4.9.7", "name server 5.5.0", "members")


def test_rocketmqs_own_clients_go_on_through_failovers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of each fault: killed, frozen, switched, frozen for a while. Brokers register often, so that a member that
    thaws does it before it knows that the other one was elected.
    """
    try:
        for version in RELEASES:
            release(version)
    except Unavailable as reason:
        pytest.skip(str(reason))
    arguments = ["--rounds", "4", "--clients", ",".join(RELEASES), "--poll-ms", POLL_MS, "--register-ms", "3000"]
    assert main([*arguments, "--folder", str(tmp_path / "run"), "--seed", "1"]) == 0
    said = capsys.readouterr().out
    for version in RELEASES:
        for place in PLACES:
            line = rf"^RocketMQ {re.escape(version)}, {re.escape(place)}: [1-9]\d* acknowledged, 0 not consumed, "
            assert re.search(line, said, re.MULTILINE), said
    assert "both copies are the same bytes" in said
