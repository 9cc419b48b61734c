"""The recording of a real 4.9.7 broker's sends, offsets and pulls, replayed against another broker, step by step.

What a real broker varies from run to run is not compared: ids (only their number and length), positions in its log,
store times.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Final

from recordings import content, lines

from metaq.formats.rocketmq.records import Record, read_records
from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand

PULL_STATUS: Final = {0, 19, 20, 21}
COMPARED: Final = (
    *("topic", "queue_id", "queue_offset", "flag", "sys_flag", "born_timestamp", "reconsume_times"),
    *("prepared_transaction_offset", "body", "body_crc"),
)

Ask = Callable[[RemotingCommand], RemotingCommand | None]
"""Carries out a request; ``None`` for a one-way one."""


def steps() -> list[dict[str, Any]]:
    """The steps of the recording."""
    return [step for step in copy.deepcopy(lines("b_send_pull.jsonl")) if "step" in step]


class Replay:
    """What was answered to the steps that later ones refer to. ``sleep`` passes seconds."""

    def __init__(self, ask: Ask, sleep: Callable[[float], None]) -> None:
        self._ask, self._sleep = ask, sleep
        self.answers: dict[str, RemotingCommand] = {}

    def play(self, step: dict[str, Any]) -> list[str]:
        """Carry out a step; return what is otherwise than recorded."""
        asked = step["step"]
        if asked.get("op") == "sleep":
            self._sleep(asked["seconds"])
            return []
        header = step["request"]["header"]
        ext = {name: self._filled(value) for name, value in asked.get("ext", {}).items()}
        command = RemotingCommand(
            header["code"],
            ext,
            content(step["request"]["body"]),
            header["opaque"],
            header.get("flag", 0),
            version=header["version"],
        )
        answer = self._ask(command)
        if command.flag & ONEWAY_FLAG:
            return [] if not step["replies"] else ["a reply to a one-way request"]
        assert answer is not None
        if "id" in asked:
            self.answers[asked["id"]] = answer
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
            return [f"code {answer.code} ({answer.remark}), recorded {wanted['code']} ({wanted.get('remark')})"]
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
        ours = list(read_records(answer.body)) if asked["code"] == 11 else []
        return found + self._compare_records(ours, records)

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
