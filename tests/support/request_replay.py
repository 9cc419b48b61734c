"""Requests that were sent to a real broker and what it answered, sent again to another broker, or to record them anew.

A line of a recording is a ``step`` and the ``reply`` to it. ``do`` is ``ask`` (and wait for the answer), ``post`` (the
answer comes later), ``wait`` (for the answer to the step ``for``), ``close`` (the connection) or ``sleep``. ``until``
repeats a request until its answer has this code: RocketMQ makes stored messages readable a little later. ``conn`` names
a connection. ``${ID.ext.NAME}`` in fields and bodies is from the answer to the step ``id``, ``${ID.place}`` the
commit-log offset in its ``msgId``, ``${ID.rec.place}`` that of its first record.
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any, Final

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record, read_records
from metaq.model import Address
from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode

VERSION: Final = 407
UNTIL_S: Final = 20.0
DEADLINE_S: Final = 20.0
WITH_RECORDS: Final = frozenset({11, 12, 33})
"""Requests whose answers are messages."""

PLACES: Final = ("msgId", "commitLogOffset", "offsetMsgId", "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset")
"""Fields that say when and where in a log."""

_NAME: Final = re.compile(r"\$\{(\w+)\.([\w.]+)\}")

_VARYING: Final = re.compile(r'(?<="clientAddr": ")[0-9.:]+(?=")|(?<=Timestamp": )[0-9]+')

Step = dict[str, Any]


class Wire:
    """One connection: answers by their numbers, and what the broker told unasked."""

    def __init__(self, address: Address) -> None:
        self.address: Final = address
        self._socket = socket.create_connection((address.host, address.port), DEADLINE_S)
        self._decoder = FrameDecoder()
        self._answers: dict[int, RemotingCommand] = {}
        self._reported: list[RemotingCommand] = []

    def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """Send a request and return its answer, ``None`` if it is one that has none."""
        self.post(command)
        return None if command.flag & ONEWAY_FLAG else self.wait(command.opaque)

    def post(self, command: RemotingCommand) -> None:
        """Send a request."""
        self._socket.sendall(encode(command))

    def wait(self, opaque: int) -> RemotingCommand:
        """The answer with this number; others that come are kept."""
        while opaque not in self._answers:
            self._receive()
        return self._answers.pop(opaque)

    def _receive(self) -> None:
        data = self._socket.recv(1 << 16)
        assert data, "the broker closed the connection"
        for command in self._decoder.receive(data):
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self._reported.append(command)

    def wait_reported(self, code: int) -> RemotingCommand:
        """The next request with this code that the broker sends on its own."""
        while not (reported := [each for each in self._reported if each.code == code]):
            self._receive()
        self._reported.remove(reported[0])
        return reported[0]

    def reported(self) -> list[int]:
        """The codes of what the broker has told until now."""
        reported, self._reported = self._reported, []
        return [each.code for each in reported]

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Replay:
    """Plays steps against the broker at ``address``."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._wires: dict[str, Wire] = {}
        self._answers: dict[str, RemotingCommand] = {}
        self._posted: dict[str, tuple[str, int, int]] = {}
        self._opaque = 0

    def play(self, step: Step) -> dict[str, Any] | None:
        """Carry out a step; return what came of it, as recordings show it, ``None`` if there is nothing to show."""
        match step["do"]:
            case "sleep":
                time.sleep(step["seconds"])
                return None
            case "close":
                self._wires.pop(step["conn"]).close()
                return None
            case "wait":
                conn, opaque, code = self._posted.pop(step["for"])
                return self._shown(step, code, self._wire(conn).wait(opaque))
        command = self._command(step)
        conn = step.get("conn", "a")
        wire = self._wire(conn)
        if step["do"] == "post":
            wire.post(command)
            self._posted[step["id"]] = conn, command.opaque, command.code
            return None
        answer, end = wire.ask(command), time.monotonic() + UNTIL_S
        while answer is not None and answer.code != step.get("until", answer.code) and time.monotonic() < end:
            time.sleep(0.05)
            answer = wire.ask(self._command(step))
        return None if answer is None else self._shown(step, command.code, answer)

    def close(self) -> None:
        """Close all connections."""
        for wire in self._wires.values():
            wire.close()

    def _wire(self, conn: str) -> Wire:
        if conn not in self._wires:
            self._wires[conn] = Wire(self._address)
        return self._wires[conn]

    def _command(self, step: Step) -> RemotingCommand:
        self._opaque += 1
        ext = {name: self._filled(str(value)) for name, value in step.get("ext", {}).items()}
        body = step.get("body", "")
        text = self._filled(body if isinstance(body, str) else json.dumps(body))
        flag = ONEWAY_FLAG if step.get("oneway") else 0
        return RemotingCommand(step["code"], ext, text.encode(), self._opaque, flag, version=VERSION)

    def _filled(self, text: str) -> str:
        return _NAME.sub(lambda match: self._value(match[1], match[2]), text)

    def _value(self, step: str, path: str) -> str:
        answer = self._answers[step]
        if path.startswith("ext."):
            return answer.ext[path.removeprefix("ext.")]
        if path == "rec.place":
            return str(next(read_records(answer.body)).physical_offset)
        return str(OffsetMessageId.parse(answer.ext["msgId"].split(",")[0]).physical_offset)

    def _shown(self, step: Step, code: int, answer: RemotingCommand) -> dict[str, Any]:
        if "id" in step:
            self._answers[step["id"]] = answer
        if "for" in step:
            self._answers[step["for"]] = answer
        shown: dict[str, Any] = {"code": answer.code, "ext": dict(answer.ext), "remark": answer.remark}
        if code in WITH_RECORDS and answer.code == 0:
            shown["records"] = [_record(each) for each in read_records(answer.body)]
        elif answer.body:
            shown["json"] = json.loads(json.dumps(load_json(answer.body, "body")))
        if reported := self._wire(step.get("conn", "a")).reported():
            shown["told"] = reported
        return shown


def _record(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "born": record.born_timestamp,
        "times": record.reconsume_times,
        "body": record.body.decode(),
        "properties": record.property_map(),
    }


def compared(shown: dict[str, Any] | None, address: str) -> Any:
    """What is to be the same at all brokers: without places in logs, times, addresses, and words of errors."""
    if shown is None:
        return None
    kept = {name: value for name, value in shown.items() if name != "remark" or "maxOffset" in shown["ext"]}
    kept["ext"] = {name: "" if name in PLACES else value for name, value in shown["ext"].items()}
    for record in kept.get("records", ()):
        properties = record["properties"]
        if "ORIGIN_MESSAGE_ID" in properties:
            properties["ORIGIN_MESSAGE_ID"] = ""
    text = _VARYING.sub("0", json.dumps(kept, sort_keys=True).replace(address, "BROKER"))
    return json.loads(text, object_hook=_in_order)


def _in_order(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: sorted(each, key=json.dumps) if isinstance(each, list) and name != "records" else each
        for name, each in value.items()
    }
