"""Nine short sessions of Java clients of 4.9.7 with a real broker, held with this one: every request in its order.

Connections, numbers of requests and fields are as recorded, but for places in the log, which are those that this broker
gave. Every answer is the recorded one: code, fields, body and the first two messages, but for places and times. What
the broker tells on its own comes as it was recorded, too: changes of groups, and a question about a half message.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from fix_broker import StartBroker, wait_until, write_ini
from recorded_differences import OF_FIELDS
from recordings import content, lines
from request_replay import AS_RECORDED, Asker, Wire

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.properties import parse_properties
from metaq.formats.rocketmq.records import Record, read_records
from metaq.model import Address
from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.offsets import GetMaxOffset

pytestmark = pytest.mark.process

Line = dict[str, Any]

HELD_MS: Final = 300
"""How long pulls wait that wait in vain; 15 s in the recording."""

PULL, SEND_BACK, END, LOOKUP, ASKED, BY_TIME = 11, 36, 37, 12, 39, 29
SENDS: Final = (310, 320)
ANOTHER_RUN: Final = "sql"
"""This session was held with another broker, to which the same messages were sent as in the first session."""

VARYING: Final = OF_FIELDS["clients_java497.jsonl"].keys()


class Sessions:
    """The sessions, held with the broker at ``address``."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._wires: dict[tuple[str, int], Wire] = {}
        self._asked: dict[tuple[str, int, int], RemotingCommand] = {}
        self._places: dict[int, int] = {}
        self._ordinals: dict[int, int] = {}
        self.compared: Counter[int] = Counter()
        self.messages = 0

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    @property
    def unanswered(self) -> set[int]:
        """The codes of requests that the recording has no answer to."""
        return {command.code for command in self._asked.values()}

    def play(self, line: Line) -> None:
        key = line["section"], line["conn"]
        if "header" not in line:
            if key in self._wires:
                self._wires.pop(key).close()
            return
        header, is_answer = line["header"], bool(line["header"].get("flag", 0) & 1)
        if key not in self._wires:
            self._wires[key] = Wire(self._address)
        wire = self._wires[key]
        number = *key, header["opaque"]
        if line["from"] == "client" and not is_answer:
            command = self._command(line)
            wire.post(command)
            if not command.is_oneway:
                self._asked[number] = command
        elif line["from"] == "server" and is_answer and number in self._asked:
            self._compare(line, self._asked.pop(number), wire.wait(header["opaque"]))
        elif line["from"] == "server" and not is_answer:
            self._reported(line, wire.wait_reported(header["code"]))

    def _command(self, line: Line) -> RemotingCommand:
        header = line["header"]
        ext = {name: str(value) for name, value in (header.get("extFields") or {}).items()}
        body = bytes.fromhex(line["hex"]) if "hex" in line else line.get("text", "").encode()
        code = header["code"]
        if code == SEND_BACK:
            ext["offset"] = str(self._places[int(ext["offset"])])
        elif code == END:
            ext["commitLogOffset"] = str(self._places[int(ext["commitLogOffset"])])
            ext["tranStateTableOffset"] = str(self._ordinals[int(ext["tranStateTableOffset"])])
        elif code == LOOKUP:
            ext |= {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
        elif code == PULL and int(ext["suspendTimeoutMillis"]) and not self._is_found(line):
            ext["suspendTimeoutMillis"] = str(HELD_MS)
        return RemotingCommand(code, ext, body, header["opaque"], header["flag"], version=header["version"])

    def _is_found(self, line: Line) -> bool:
        """Whether a pull brought messages."""
        recorded = lines("clients_java497.jsonl")
        number = line["section"], line["conn"], line["header"]["opaque"]
        for other in recorded[recorded.index(line) + 1 :]:
            header = other.get("header", {})
            is_answer = other["from"] == "server" and header.get("flag", 0) & 1
            if is_answer and (other["section"], other["conn"], header["opaque"]) == number:
                return bool(header["code"] == 0)
        return False

    def _compare(self, line: Line, asked: RemotingCommand, ours: RemotingCommand) -> None:
        header, code = line["header"], asked.code
        where = f"{line['section']}: {asked.code} {asked.ext}"
        assert ours.code == header["code"], f"{where}: {ours.remark}"
        ext, recorded = dict(ours.ext), dict(header.get("extFields") or {})
        if code in SENDS and "msgId" in recorded:
            self._placed(recorded, ext)
        for name in VARYING:
            assert (name in ext) is (name in recorded)
            ext.pop(name, None)
            recorded.pop(name, None)
        if code == BY_TIME and line["section"] == "admin":
            ext["offset"] = recorded["offset"]  # by a time, which is another now
        assert ext == recorded, where
        if line.get("records"):
            self._same_records(list(read_records(ours.body)), line["records"], line["section"], where)
        elif code != PULL and code != LOOKUP:
            assert _parsed(ours.body) == _parsed(line.get("text", "").encode()), where
        self.compared[code] += 1

    def _placed(self, recorded: dict[str, str], ours: dict[str, str]) -> None:
        ids = recorded.pop("msgId").split(","), ours.pop("msgId").split(",")
        for theirs, mine in zip(*ids, strict=True):
            assert len(theirs) == len(mine)
            self._places[_place(theirs)] = _place(mine)
        self._ordinals[int(recorded["queueOffset"])] = int(ours["queueOffset"])

    def _same_records(self, ours: list[Record], recorded: list[Line], section: str, where: str) -> None:
        for mine, theirs in zip(ours, recorded, strict=False):
            self._places[int(theirs["physicalOffset"])] = mine.physical_offset
            assert (mine.topic, mine.queue_id, mine.queue_offset) == (
                theirs["topic"],
                theirs["queueId"],
                theirs["queueOffset"],
            ), where
            assert mine.body == content(theirs["body"]), where
            assert (mine.flag, mine.sys_flag, mine.body_crc) == (theirs["flag"], theirs["sysFlag"], theirs["bodyCRC"])
            assert mine.reconsume_times == theirs["reconsumeTimes"]
            own = {"ORIGIN_MESSAGE_ID"}
            if section == ANOTHER_RUN:
                own.add("UNIQ_KEY")
            else:
                assert mine.born_timestamp == theirs["bornTimestamp"]
            found, expected = mine.property_map(), parse_properties(theirs["properties"])
            assert found.keys() == expected.keys()
            assert [found[name] for name in found if name not in own] == [
                expected[name] for name in found if name not in own
            ], where
            self.messages += 1
        assert len(ours) >= len(recorded), where

    def _reported(self, line: Line, ours: RemotingCommand) -> None:
        recorded = line["header"].get("extFields") or {}
        assert (set(ours.ext), ours.is_oneway) == (set(recorded), True)
        if ours.code == ASKED:
            self._places[int(recorded["commitLogOffset"])] = int(ours.ext["commitLogOffset"])
            self._ordinals[int(recorded["tranStateTableOffset"])] = int(ours.ext["tranStateTableOffset"])
        else:
            assert dict(ours.ext) == recorded
        self.compared[ours.code] += 1


def _place(message_id: str) -> int:
    return OffsetMessageId.parse(message_id).physical_offset


def _parsed(body: bytes) -> Any:
    found = load_json(body, "body") if body else None
    if isinstance(found, dict):
        return {name: sorted(map(str, each)) if isinstance(each, list) else each for name, each in found.items()}
    return found


@pytest.mark.parametrize(
    ("sections", "answers", "messages"),
    [
        (("producer", "push", "orderly", "tx", "litepull", "assign", "broadcast", "admin"), 107, 26),
        (("producer", ANOTHER_RUN), 29, 3),
    ],
    ids=["one run", "SQL"],
)
def test_every_request_of_java_clients(
    sections: tuple[str, ...], answers: int, messages: int, start_broker: StartBroker, tmp_path: Path
) -> None:
    checks = "transactionTimeOut=300\ntransactionCheckInterval=300\n"
    ini = write_ini(tmp_path, AS_RECORDED + checks, hostName="127.0.0.1")
    address = start_broker("start", "-f", ini).rocketmq_address
    recorded = [
        each for each in lines("clients_java497.jsonl") if each["with"] == "broker" and each["section"] in sections
    ]
    last = max(number for number, line in enumerate(recorded) if line["section"] == "producer")
    end = GetMaxOffset(topic="CT", queue_id=0)
    with closing(Sessions(address)) as sessions, Asker(address) as asker:
        assert asker.create_topic("CT", 2).code == asker.create_topic("CX", 2).code == 0
        for number, line in enumerate(recorded):
            sessions.play(line)
            if number == last:
                wait_until(lambda: asker.ask(end).ext["offset"] == "5", "the delayed message")
    assert (sessions.compared.total(), sessions.messages) == (answers, messages)
    assert sessions.unanswered == {PULL}, "held when the client went"
