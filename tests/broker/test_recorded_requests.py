"""Requests about filters, held pulls, locks, lookups, retries, delays, transactions and groups, recorded at 4.9.7.

Those of one file are right, or wrong in the way of clients; those of another have missing fields and wrong values.
Batches with what only single messages may have were recorded at 4.9.7 and at 5.5.0, new offsets of a group without
clients at 5.5.0.

They are sent again, in their order and on connections as they were. Codes, fields, bodies and messages are those
recorded, but for places in the log, times and addresses, and for the differences that are listed.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from fix_broker import StartBroker, write_ini
from recorded_differences import OF_REQUESTS
from recordings import lines
from request_replay import AS_RECORDED, VERSION, Replay, compared

pytestmark = pytest.mark.process

VERSIONS: Final = {"resets_550.jsonl": 479}
"""Of the clients; those of 5.x are answered as by 5.x."""


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_answers_are_those_recorded(name: str, start_broker: StartBroker, tmp_path: Path) -> None:
    ini = write_ini(tmp_path, AS_RECORDED, hostName="127.0.0.1")
    address = start_broker("start", "-f", ini).rocketmq_address
    with closing(Replay(address, VERSIONS.get(name, VERSION))) as replay:
        assert differing(replay, name, str(address)) == OF_REQUESTS[name].keys()


def differing(replay: Replay, name: str, address: str) -> set[str]:
    """Play everything; return the steps with other answers."""
    found = set()
    for line in lines(name):
        label = line["step"]["label"]
        shown = replay.play(line["step"])
        ours, recorded = compared(shown, address), compared(line["reply"], "${broker}")
        if label in OF_REQUESTS[name]:
            assert shown is not None
            assert shown["code"] == OF_REQUESTS[name][label][0], label
            if ours != recorded:
                found.add(label)
            continue
        assert ours == recorded, f"{label}: {shown}"
    return found
