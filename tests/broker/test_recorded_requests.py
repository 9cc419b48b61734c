"""Requests about filters, held pulls, locks, lookups, retries, delays, transactions and groups, recorded at 4.9.7.

Those of one file are right, or wrong in the way of clients; those of another have missing fields and wrong values.
Batches with what only single messages may have were recorded at 4.9.7 and at 5.5.0, new offsets of a group without
clients at 5.5.0.

They are sent again, in their order and on connections as they were. Codes, fields, bodies and messages are those
recorded, but for places in the log, times and addresses, and for the differences listed here.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from fix_broker import StartBroker, write_ini
from recordings import lines
from request_replay import AS_RECORDED, VERSION, Replay, compared

pytestmark = pytest.mark.process

FIELDS: Final = "a field that is missing is told, and nothing is done"
NAME_SERVER: Final = "the port is a name server, too"
NOT_SUPPORTED: Final = "not supported"
TOO_SOON: Final = "4.9.7 delivers it at once; 5.5.0 acknowledges it, loses it, and delivers no later timer"
HALF: Final = "it waits as a half message; 4.9.7 loses it, or its topic"

DIFFERENCES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "requests.jsonl": {
        "TAG 'Aa'": (0, "tags are compared, not their hashes: BB has the same one"),
        "SQL that cannot be compiled": (23, "4.9.7 gives every message"),
        "unknown kind": (1, "4.9.7 gives every message"),
        "rollback after a commit": (1, "it was ended before; 4.9.7 says that all is well"),
    },
    "batches.jsonl": {
        "retry topic": (13, "5.5.0 refuses it, too"),
        "TIMER_DELAY_SEC 30": (13, TOO_SOON),
        "TIMER_DELAY_MS 30000": (13, TOO_SOON),
        "TIMER_DELAY_SEC x": (1, TOO_SOON),
        "TIMER_DELIVER_MS 1700000000000": (0, "it is the first behind those that are refused"),
        "the end": (0, "the same"),
    },
    "batches_550.jsonl": {
        "TIMER_DELAY_SEC 30": (13, TOO_SOON),
        "TIMER_DELAY_MS 30000": (13, TOO_SOON),
        "TIMER_DELAY_SEC x": (1, "the code of a single message"),
        "what is stored": (0, "5.5.0 stores neither CLUSTER nor what a batch has for all of its messages"),
    },
    "wrong_values.jsonl": {},
    "resets_550.jsonl": {f"message {number}": (0, "5.5.0 gives each an id of its own") for number in range(4)},
    "wrong_requests.jsonl": {
        **{f"12 without {name}": (1, FIELDS) for name in ("topic", "key")},
        "14 without consumerGroup": (1, FIELDS),
        **{f"15 without {name}": (1, FIELDS) for name in ("consumerGroup", "topic")},
        **{f"{code} empty object": (1, FIELDS) for code in (34, 41, 46)},
        "35 without a client": (1, FIELDS),
        "TRAN_MSG without PGROUP": (0, HALF),
        "DELAY and TRAN_MSG": (0, HALF),
        **{f"{code}": (0, NAME_SERVER) for code in (105, 106)},
        "305 without fields": (0, "the system topics of this broker"),
        "314 without fields": (3, NOT_SUPPORTED),
        "317 without fields": (0, "the groups of this broker: a request without a group makes none"),
    },
}
"""Label of the step -> the code here, and why the answer is another. docs/rocketmq-broker.md lists them, too."""


VERSIONS: Final = {"resets_550.jsonl": 479}
"""Of the clients; those of 5.x are answered as by 5.x."""


@pytest.mark.parametrize("name", DIFFERENCES)
def test_answers_are_those_recorded(name: str, start_broker: StartBroker, tmp_path: Path) -> None:
    ini = write_ini(tmp_path, AS_RECORDED, hostName="127.0.0.1")
    address = start_broker("start", "-f", ini).rocketmq_address
    with closing(Replay(address, VERSIONS.get(name, VERSION))) as replay:
        assert differing(replay, name, str(address)) == DIFFERENCES[name].keys()


def differing(replay: Replay, name: str, address: str) -> set[str]:
    """Play everything; return the steps with other answers."""
    found = set()
    for line in lines(name):
        label = line["step"]["label"]
        shown = replay.play(line["step"])
        ours, recorded = compared(shown, address), compared(line["reply"], "${broker}")
        if label in DIFFERENCES[name]:
            assert shown is not None
            assert shown["code"] == DIFFERENCES[name][label][0], label
            if ours != recorded:
                found.add(label)
            continue
        assert ours == recorded, f"{label}: {shown}"
    return found
