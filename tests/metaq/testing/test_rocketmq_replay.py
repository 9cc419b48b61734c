"""The recording of a real 4.9.7 broker, replayed against the answers of the scripted one: sends, offsets, pulls.

What a real broker varies from run to run is not compared: ids (only their number and length), positions in its log,
store times. ``DIFFERENCES`` lists the steps that the scripted broker answers otherwise, with the reason.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Final

import pytest
from remoting_golden import content, lines

from metaq.formats.rocketmq.records import Record, read_records
from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from metaq.testing.rocketmq_answers import BrokerAnswers, Peer
from metaq.testing.rocketmq_store import Store, Topic

DIFFERENCES: Final = {
    "32 of TT[0]": "a store time",
}

PULL_STATUS: Final = {0, 19, 20, 21}
COMPARED: Final = (
    *("topic", "queue_id", "queue_offset", "flag", "sys_flag", "born_timestamp", "reconsume_times"),
    *("prepared_transaction_offset", "body", "body_crc"),
)


def steps() -> list[dict[str, Any]]:
    return [step for step in copy.deepcopy(lines("b_send_pull.jsonl")) if "step" in step]


class Replay:
    """A broker with what the recorded one had, and what was answered to the steps that later ones refer to."""

    def __init__(self) -> None:
        self.now_ms = 1_795_426_376_217
        self.store = Store("127.0.0.1", lambda: self.now_ms)
        self.store.topics |= {name: Topic(1, 1) for name in ("golden-a", "GoldenCluster")}
        self.broker = BrokerAnswers(self.store, "GoldenCluster")
        self.answers: dict[str, RemotingCommand] = {}

    def play(self, step: dict[str, Any]) -> list[str]:
        """Answer a step; return what is otherwise than recorded."""
        asked = step["step"]
        if asked.get("op") == "sleep":
            self.now_ms += int(asked["seconds"] * 1000)
            return []
        self.now_ms += 1
        header = step["request"]["header"]
        ext = {name: self._filled(value) for name, value in asked.get("ext", {}).items()}
        command = RemotingCommand(
            header["code"], ext, content(step["request"]["body"]), header["opaque"], header.get("flag", 0)
        )
        answer = self.broker.answer(command, Peer(("127.0.0.1", 54064), 35911))
        if "id" in asked:
            self.answers[asked["id"]] = answer
        if command.flag & ONEWAY_FLAG:
            return [] if not step["replies"] else ["a reply to a one-way request"]
        (recorded,) = step["replies"]
        return self._compare(answer, recorded, asked)

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{([^}]*)\}", lambda match: self._value(match[1]), text)

    def _value(self, template: str) -> str:
        if template.startswith("rep:"):
            _, character, count = template.split(":")
            return character * int(count)
        match = re.fullmatch(r"(\w+)\.(?:ext\.(\w+)|rec\.(\d+)\.(\w+))([+-]\d+)?", template)
        assert match is not None, template
        answer = self.answers[match[1]]
        if match[2]:
            return str(int(answer.ext[match[2]]) + int(match[5] or 0))
        assert match[4] == "storeTimestamp"
        return str(list(read_records(answer.body))[int(match[3])].store_timestamp + int(match[5] or 0))

    def _compare(self, answer: RemotingCommand, recorded: dict[str, Any], asked: dict[str, Any]) -> list[str]:
        wanted = recorded["header"]
        if answer.code != wanted["code"]:
            return [f"code {answer.code}, recorded {wanted['code']} ({wanted.get('remark')})"]
        found = []
        ext, wanted_ext = dict(answer.ext), dict(wanted.get("extFields") or {})
        for name in asked.get("vary", ()):
            ext[name] = wanted_ext[name] = "varies"
        for names in (ext, wanted_ext):
            if "msgId" in names:
                names["msgId"] = ",".join("0" * len(each) for each in names["msgId"].split(","))
        if ext != wanted_ext:
            found.append(f"ext {ext}, recorded {wanted_ext}")
        if asked["code"] == 11 and answer.code in PULL_STATUS and answer.remark != wanted.get("remark"):
            found.append(f"status {answer.remark}, recorded {wanted.get('remark')}")
        records = list(read_records(content(recorded["body"]))) if wanted["code"] == 0 and asked["code"] == 11 else []
        return found + self._compare_records(list(read_records(answer.body)), records)

    def _compare_records(self, records: list[Record], wanted: list[Record]) -> list[str]:
        if len(records) != len(wanted):
            return [f"{len(records)} records, recorded {len(wanted)}"]
        return [
            f"record {number}: {name} {of_us!r}, recorded {of_java!r}"[:300]
            for number, (ours, theirs) in enumerate(zip(records, wanted, strict=True))
            for name, of_us, of_java in [
                *((name, getattr(ours, name), getattr(theirs, name)) for name in COMPARED),
                ("properties", ours.property_map(), theirs.property_map()),
            ]
            if of_us != of_java
        ]


def test_every_step_is_answered_as_recorded_but_for_a_list() -> None:
    replay = Replay()
    differing = {}
    for step in steps():
        if found := replay.play(step):
            differing[step["step"]["label"]] = found
    unexpected = {label: found for label, found in differing.items() if label not in DIFFERENCES}
    assert unexpected == {}
    assert set(differing) == set(DIFFERENCES)


def test_the_recording_is_whole() -> None:
    assert len(steps()) == 191


@pytest.mark.parametrize("field", ["code", "nextBeginOffset", "body"])
def test_a_difference_would_be_seen(field: str) -> None:
    replay = Replay()
    for step in steps():
        if step["step"]["label"] == "all of T1[0]":
            (reply,) = step["replies"]
            if field == "code":
                reply["header"]["code"] = 19
            elif field == "body":
                reply["body"] = {"hex": content(reply["body"]).replace(b"TagA", b"TagB").hex()}
            else:
                reply["header"]["extFields"][field] = "18"
            assert replay.play(step)
            return
        replay.play(step)
    raise AssertionError("no such step")
