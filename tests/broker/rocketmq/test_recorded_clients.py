"""What Java clients of 4.9.7 asked a real broker about offsets, groups and topics, asked again here.

Every request of these kinds in the recording is sent in its order, on connections as they were. Codes, fields and
bodies of the answers are those recorded, and so is every change of a group that members were notified of, in its place.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from metaq_broker.log.engine.topics import ServedTopic
from metaq_broker.rocketmq.pulls.filters import filter_checker
from recordings import lines
from remoting_brokers import FakeSession, Front

from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.command import RemotingCommand

CODES = frozenset({14, 15, 17, 29, 30, 31, 32, 34, 35, 38, 41, 42, 46})
NOTIFY = 40
FIRST_MS = 1795425834476
"""When the first message of the recorded topic was stored."""

Key = tuple[str, int]


def recorded_front(root: Path) -> Front:
    """A broker with the recorded topic and its messages. SQL is known to it, as it was to the recorded one."""
    front = Front(root, check_filter=filter_checker(True))
    front.topics.create("CT", ServedTopic(2, 2))
    front.store.times = {("CT", 0): [FIRST_MS] * 5, ("CT", 1): [FIRST_MS] * 6}
    return front


class Replay:
    def __init__(self, front: Front) -> None:
        self.front = front
        self.sessions: defaultdict[Key, FakeSession] = defaultdict(FakeSession)
        self.asked: dict[tuple[Key, int], RemotingCommand | None] = {}
        self.pushed: Counter[Key] = Counter()
        self.checked: Counter[int] = Counter()

    def step(self, line: dict[str, Any]) -> None:
        key = line["section"], line["conn"]
        if "header" not in line:
            self.front.lose(self.sessions.pop(key, FakeSession()))
            return
        header = line["header"]
        is_response = bool(header.get("flag", 0) & 1)
        if line["from"] == "client" and not is_response and header["code"] in CODES:
            self._ask(key, header, line.get("text", ""))
        elif line["from"] == "server" and is_response and (key, header["opaque"]) in self.asked:
            self._check(self.asked.pop((key, header["opaque"])), header, line.get("text", ""))
        elif line["from"] == "server" and header["code"] == NOTIFY and not is_response:
            reported = self.sessions[key].pushed[self.pushed[key]]
            assert (reported.code, dict(reported.ext), reported.is_oneway) == (NOTIFY, header["extFields"], True)
            self.pushed[key] += 1
            self.checked[NOTIFY] += 1

    def _ask(self, key: Key, header: dict[str, Any], body: str) -> None:
        ext = {name: str(value) for name, value in (header.get("extFields") or {}).items()}
        command = RemotingCommand(
            header["code"], ext, body.encode(), header["opaque"], header["flag"], version=header["version"]
        )
        if command.is_oneway:
            self.front.send(command, self.sessions[key])
            self.checked[command.code] += 1
        else:
            self.asked[key, command.opaque] = self.front.ask_raw(command, self.sessions[key])

    def _check(self, ours: RemotingCommand | None, header: dict[str, Any], body: str) -> None:
        assert ours is not None
        assert (ours.code, dict(ours.ext)) == (header["code"], header.get("extFields") or {})
        assert _sorted(ours.body) == _sorted(body.encode())
        assert (ours.remark == header.get("remark")) or header["code"] == 0
        self.checked[header["code"]] += 1

    def check_reported_no_more(self) -> None:
        for key, session in self.sessions.items():
            assert len(session.pushed) == self.pushed[key], f"{key} was told more than recorded"


def _sorted(body: bytes) -> Any:
    """A body without the order in its lists."""
    return json.loads(json.dumps(load_json(body, "body")) if body else "null", object_hook=_in_order)


def _in_order(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: sorted(each, key=json.dumps) if isinstance(each, list) else each for name, each in sorted(value.items())
    }


def test_answers_and_news_are_those_recorded(tmp_path: Path) -> None:
    front = recorded_front(tmp_path)
    replay = Replay(front)
    requests = 0
    for line in lines("clients_java497.jsonl"):
        if line["with"] == "broker":
            header = line.get("header", {})
            requests += header.get("code") in CODES and not header.get("flag", 0) & 1 and line["from"] == "client"
            replay.step(line)
    replay.check_reported_no_more()
    assert replay.asked == {}
    assert requests == 102
    assert replay.checked[NOTIFY] == 6
    assert front.offsets.all()
