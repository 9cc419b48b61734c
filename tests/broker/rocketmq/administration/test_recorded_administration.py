"""What a real broker of 4.9.7 answered to administrators and to wrong requests, asked again here.

Codes, fields and bodies are those recorded, but for times and versions of data, and for the differences that are
listed, each with its reason. Each request has a connection of its own.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from metaq_broker.log.files.files import DiskSpace
from metaq_broker.rocketmq.administration.running_figures import CurrentFigures, RunningFigures, Totals
from metaq_broker.rocketmq.pulls.filters import filter_checker
from recorded_differences import OF_ADMINISTRATION, OF_FIELDS
from recordings import lines
from remoting_brokers import FakeSession, Front

from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.command import RemotingCommand

OTHER_TOPICS: Final = frozenset({"P", "Z", "configured", "TBW102"})
"""Refused here; in this test's configuration; not at a broker that makes no topics by itself, as the recorded one."""

NOTIFY: Final = 40

WITHOUT_FIELD: Final = "null"
"""The group of a commit that named none, at the real broker."""


def asked(front: Front, line: dict[str, Any]) -> RemotingCommand:
    """The response to a request, on a connection of its own."""
    session = FakeSession()
    command = RemotingCommand(line["code"], line["ext"], line["body"].encode(), 1)

    async def run() -> None:
        front.send(command, session)
        front.steps.run_all()
        while not session.responses:
            await asyncio.sleep(0)
            front.steps.run_all()

    asyncio.run(run())
    front.lose(session)
    if line["reply"]["code"] == NOTIFY:  # it came before the response
        return session.pushed[0]
    (response,) = session.responses
    assert response is not None
    return response


def compared(value: Any) -> Any:
    """A body without what differs from run to run, and what the real broker kept of requests that are refused here."""
    if not isinstance(value, dict):
        return value
    shown = {name: each for name, each in value.items() if name not in OF_FIELDS["administration.jsonl"]}
    for table in ("topicConfigTable", "offsetTable"):
        if isinstance(shown.get(table), dict):
            kept = {name: each for name, each in shown[table].items() if not str(name).endswith("@" + WITHOUT_FIELD)}
            shown[table] = {name: each for name, each in kept.items() if name not in OTHER_TOPICS}
    if "groupList" in shown:
        shown["groupList"] = sorted(set(shown["groupList"]) - {WITHOUT_FIELD})
    return shown


def body(response: RemotingCommand) -> Any:
    if not response.body.startswith(b"{"):
        return response.body.decode() or None
    return json.loads(json.dumps(load_json(response.body, "body")))


def test_answers_are_those_recorded(tmp_path: Path) -> None:
    front, recorded = Front(tmp_path, check_filter=filter_checker(True)), lines("administration.jsonl")
    differing = set()
    for number, line in enumerate(recorded, 1):
        ours, reply = asked(front, line), line["reply"]
        where = f"line {number}: {line['code']} {line['ext']} {line['body']}"
        if number in OF_ADMINISTRATION:
            assert ours.code == OF_ADMINISTRATION[number][0], where
            same = (ours.code, ours.ext) == (reply["code"], reply["ext"])
            if not same or compared(body(ours)) != compared(reply.get("json")):
                differing.add(number)
            continue
        assert (ours.code, ours.ext) == (reply["code"], reply["ext"]), f"{where}: {ours.remark}"
        assert compared(body(ours)) == compared(reply.get("json")), where
    assert differing == OF_ADMINISTRATION.keys()
    assert len(recorded) == 96


def test_figures_have_names_that_the_real_broker_has() -> None:
    (line,) = [line for line in lines("administration.jsonl") if line["code"] == 28]
    moment = CurrentFigures(disk=DiskSpace(1, 2))
    ours = RunningFigures(Totals, lambda: moment, lambda: 1.0, lambda: 0).table().keys()
    real = line["reply"]["json"]["table"].keys()
    assert (ours - real, real - ours) == ({"heldPulls", "connections", "getTransferredTps"}, set())
