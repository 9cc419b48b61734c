"""Requests that were sent to a real broker and what it answered, sent again to another one, or to record them anew.

A line of a recording is a ``step`` and the ``reply`` to it. ``do`` is ``ask`` (and wait for the answer), ``post`` (the
answer comes later), ``wait`` (for the answer to the step ``for``), ``close`` (the connection) or ``sleep``. ``until``
repeats a request until its answer has this code: RocketMQ makes stored messages readable a little later. ``conn`` names
a connection. ``${ID.ext.NAME}`` in fields and bodies is from the answer to the step ``id``, ``${ID.place}`` the
commit-log offset in its ``msgId``, ``${ID.rec.place}`` that of its first record.

A new step is a line with a ``step`` and no ``reply``. This sends all to a broker of RocketMQ 4.9.7, or of the release
that is named, and writes the answers::

    PYTHONPATH=.:broker:tests/support python tests/support/request_replay.py requests.jsonl [5.5.0]
"""

from __future__ import annotations

import copy
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from recordings import ROCKETMQ, content, lines

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record, read_records
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.command import ONEWAY_FLAG, Codec, RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import GetBrokerConfig, UpdateAndCreateTopic
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset
from peers.rocketmq.jars import release
from peers.rocketmq.servers import Cluster

VERSION: Final = 407
DEADLINE_S: Final = 60.0
ASK_AGAIN_S: Final = 0.05
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
        self._socket.close()


class Replay:
    """Plays steps against the broker at ``address``, as a client of ``version``."""

    def __init__(self, address: Address, version: int = VERSION) -> None:
        self._address, self._version = address, version
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
        answer, end = wire.ask(command), time.monotonic() + DEADLINE_S
        while answer is not None and answer.code != step.get("until", answer.code) and time.monotonic() < end:
            time.sleep(0.05)
            answer = wire.ask(self._command(step))
        return None if answer is None else self._shown(step, command.code, answer)

    def close(self) -> None:
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
        return RemotingCommand(step["code"], ext, text.encode(), self._opaque, flag, version=self._version)

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


PULL_STATUS: Final = {0, 19, 20, 21}
COMPARED: Final = (
    *("topic", "queue_id", "queue_offset", "flag", "sys_flag", "born_timestamp", "reconsume_times"),
    *("prepared_transaction_offset", "body", "body_crc"),
)

CODECS: Final = {"JSON": Codec.JSON, "BIN": Codec.BINARY}

Ask = Callable[[RemotingCommand], RemotingCommand | None]
"""Carries out a request; ``None`` for a one-way one."""


def steps() -> list[dict[str, Any]]:
    return [step for step in copy.deepcopy(lines("b_send_pull.jsonl")) if "step" in step]


class SendPullReplay:
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
        code, opaque, body = header["code"], header["opaque"], content(step["request"]["body"])
        codec = CODECS[step["request"]["codec"]]
        command = RemotingCommand(
            code, ext, body, opaque, header.get("flag", 0), version=header["version"], codec=codec
        )
        answer = self._ask(command)
        if command.flag & ONEWAY_FLAG:
            return [] if not step["replies"] else ["a reply to a one-way request"]
        assert answer is not None
        if (until := asked.get("until")) is not None:  # a one-way request may not be carried out yet
            for _ in range(int(DEADLINE_S / ASK_AGAIN_S)):
                if answer.ext.get(until["path"].removeprefix("ext.")) == until["equals"]:
                    break
                self._sleep(ASK_AGAIN_S)
                answer = self._ask(command)
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
        found = [] if answer.codec is CODECS[recorded["codec"]] else [f"a header in {answer.codec.name}"]
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


AS_RECORDED: Final = (
    "[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport=0\nbrokerName=golden-a\nclusterName=GoldenCluster\n"
)
"""Configuration of a broker with the names of the one whose answers were recorded."""


class Asker(RemotingClient):
    """One client with a connection of its own. ``ask`` fails the test if the answer is not 0."""

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        super().__init__()
        self.address, self.credentials = address, credentials

    def response(self, header: Request, body: JsonBody | bytes = b"", oneway: bool = False) -> RemotingCommand:
        command = to_request(header, body if isinstance(body, bytes) else body.to_json(), oneway=oneway)
        if self.credentials is not None:
            command = sign(command, self.credentials)
        if oneway:
            self.oneway(self.address, command, DEADLINE_S)
            return command
        return self.call(self.address, command, DEADLINE_S)

    def ask(self, header: Request, body: JsonBody | bytes = b"") -> RemotingCommand:
        answered = self.response(header, body)
        assert answered.code == 0, answered.remark
        return answered

    def create_topic(self, topic: str, queues: int = 1) -> RemotingCommand:
        usual: Any = {"default_topic": "TBW102", "perm": 6, "topic_filter_type": "SINGLE_TAG", "order": False}
        header = UpdateAndCreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues, **usual)
        return self.response(header)

    def commit(self, topic: str, group: str, queue: int, offset: int, oneway: bool = False) -> None:
        header = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset)
        if self.response(header, oneway=oneway).code and not oneway:
            raise AssertionError("not committed")

    def committed(self, topic: str, group: str, queue: int) -> int:
        header = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue)
        return int(self.ask(header).ext["offset"])

    def settings(self) -> dict[str, str]:
        """The broker's settings (26)."""
        lines = self.ask(GetBrokerConfig()).body.decode().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}


SETTLE_S: Final = 4.0
"""A broker that has just started finds nothing by key for a while."""


def main(name: str, version: str = "4.9.7") -> int:
    path = ROCKETMQ / name
    steps = [json.loads(line)["step"] for line in path.read_text("utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder, Cluster(release(version), Path(folder)) as cluster:
        cluster.start_name_server()
        broker = cluster.start_broker("golden-a", brokerClusterName="GoldenCluster", autoCreateTopicEnable="true")
        time.sleep(SETTLE_S)
        with closing(Replay(Address.parse(broker.address))) as replay:
            recorded = [{"step": step, "reply": replay.play(step)} for step in steps]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in recorded)
        path.write_text(text.replace(broker.address, "${broker}"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
