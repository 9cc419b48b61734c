"""Requests about filters, held pulls, locks, lookups, retries, delays, transactions and groups, recorded at 4.9.7.

They are sent again, in their order and on connections as they were. Codes, fields, bodies and messages are those
recorded, but for places in the log, times and addresses, and for the differences listed here.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from fix_broker import StartBroker, system_section
from remoting_asked import remoting_address
from remoting_golden import lines
from request_replay import Replay, compared

pytestmark = pytest.mark.process

DIFFERENCES: Final = {
    "TAG 'Aa'": (0, "tags are compared, not their hashes: BB has the same one"),
    "SQL that cannot be compiled": (23, "4.9.7 gives every message"),
    "unknown kind": (1, "4.9.7 gives every message"),
    "rollback after a commit": (1, "it was ended before; 4.9.7 says that all is well"),
}
"""Label of the step -> the code here, and why the answer is another. docs/rocketmq-broker.md lists them, too."""


def test_answers_are_those_recorded(start_broker: StartBroker, tmp_path: Path) -> None:
    ini = tmp_path / "server.ini"
    ini.write_text(
        f"{system_section(0)}hostName=127.0.0.1\ndataPath={tmp_path / 'data'}\n[zookeeper]\nzk.zkEnable=false\n"
        "[rocketmq]\nenabled=true\nport=0\nbrokerName=golden-a\nclusterName=GoldenCluster\n"
    )
    address = remoting_address(start_broker("start", "-f", ini, "--port", "0"))
    with closing(Replay(address)) as replay:
        assert differing(replay, str(address)) == DIFFERENCES.keys()


def differing(replay: Replay, address: str) -> set[str]:
    """Play everything; return the steps with other answers."""
    found = set()
    for line in lines("requests.jsonl"):
        label = line["step"]["label"]
        shown = replay.play(line["step"])
        ours, recorded = compared(shown, address), compared(line["reply"], "${broker}")
        if label in DIFFERENCES:
            assert shown is not None
            assert shown["code"] == DIFFERENCES[label][0], label
            if ours != recorded:
                found.add(label)
            continue
        assert ours == recorded, f"{label}: {shown}"
    return found
