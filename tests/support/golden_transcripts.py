"""Reads the recorded conversations with a Java broker and makes two replies comparable.

What differs from run to run is replaced by a word on both sides: message ids, ports, pids, times, version texts.
Message ids inside a ``value`` are found through the frames that the recorded puts tell of, so that slices which begin
or end inside a frame are compared byte by byte as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from recordings import METAQ

from metaq.formats.frames import HEADER_BYTES, walk
from metaq.protocols.text.commands import Get, Put, Reply, Result, Value
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder

_ID_AT, _ID_BYTES = 8, 8


@dataclass(frozen=True)
class Step:
    """One request on one connection, and what the Java broker did: a reply, nothing, or closing the connection."""

    label: str
    connection: str
    request: bytes
    reply: Reply | None
    closes: bool

    @property
    def command(self) -> object:
        """The request as a command, ``None`` if it is not one."""
        decoder = CommandDecoder()
        decoder.receive_data(self.request)
        try:
            return decoder.next_command()
        except Exception:
            return None


def steps(name: str) -> list[Step]:
    with open(METAQ / name) as lines:
        return [_step(json.loads(line)) for line in lines]


def _step(record: dict[str, str]) -> Step:
    reply_bytes = bytes.fromhex(record["reply_hex"])
    reply = _decode_reply(reply_bytes) if reply_bytes else None
    return Step(record["label"], record["conn"], _request(record["request_hex"]), reply, bool(record["server_closed"]))


def _request(text: str) -> bytes:
    """Long requests are recorded as their first bytes and their length; the last byte is repeated."""
    cut = re.fullmatch(r"([0-9a-f]+)\.\.\.\((\d+) bytes\)", text)
    if cut is None:
        return bytes.fromhex(text)
    front = bytes.fromhex(cut[1][: len(cut[1]) // 2 * 2])
    return front + front[-1:] * (int(cut[2]) - len(front))


def _decode_reply(data: bytes) -> Reply:
    decoder = ReplyDecoder()
    decoder.receive_data(data)
    reply = decoder.next_reply()
    assert reply is not NEED_DATA
    assert decoder.pending_bytes == 0
    return reply


_MASKS: list[tuple[str, str]] = [
    (r"\A-?\d{15,} (-?\d+ -?\d+)\Z", r"<id> \1"),
    (r"meta://127\.0\.0\.1:\d+", "meta://<address>"),
    (r"(?m)^(pid|port|uptime|threads|config_checksum) \d+", r"\1 <number>"),
    (r"(?m)^version \S+", "version <text>"),
    (r"\A1\.4\.6\S*\Z", "<version>"),
    (r"Count/Duration=[\d.]+,Duration=\d+", "<rate>"),
    (r"(?m)^(serverPort|dataPath)=.*", r"\1=<ours>"),
    (r"(?m)^zk\.zk(Connect|Enable)=.*", "<ZooKeeper, or none>"),
]


@dataclass
class Comparison:
    """Makes replies of one transcript comparable; it learns where frames are from the puts it has seen."""

    frames: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    spread_topics: set[str] = field(default_factory=set)
    """Topics with a put to "any partition": which one it was is up to the broker."""

    def normal(self, step: Step, reply: Reply | None) -> object:
        """Return the reply with everything replaced that may differ."""
        if isinstance(reply, Value):
            return "value", self._masked(step, reply.data), reply.opaque
        if isinstance(reply, Result):
            return reply.code, self._any_partition(step, _normal_text(step, reply.text)), reply.opaque
        return None

    def learn(self, step: Step, reply: Reply | None) -> None:
        """Note where a put message begins."""
        command = step.command
        if isinstance(command, Put) and command.partition == -1:
            self.spread_topics.add(command.topic)
        if isinstance(command, Put) and isinstance(reply, Result) and reply.code == 200:
            _, partition, offset = map(int, reply.text.split(" "))
            if offset >= 0:
                starts = self.frames.setdefault((command.topic, partition), {})
                starts[offset] = offset + HEADER_BYTES + len(command.body)

    def _any_partition(self, step: Step, text: str) -> str:
        command = step.command
        if isinstance(command, Put) and command.partition == -1:
            text = re.sub(r"\A<id> \d+", "<id> <any>", text)
        for topic in self.spread_topics:
            text = re.sub(rf"(?m)^{topic} part \d+", f"{topic} part <any>", text)
        return text

    def _masked(self, step: Step, data: bytes) -> bytes:
        command = step.command
        assert isinstance(command, Get)
        masked = bytearray(data)
        for start in self._starts(command, data):
            first, last = start + _ID_AT - command.offset, start + _ID_AT + _ID_BYTES - command.offset
            for position in range(max(first, 0), min(last, len(data))):
                masked[position] = 0
        return bytes(masked)

    def _starts(self, command: Get, data: bytes) -> Iterator[int]:
        known = self.frames.get((command.topic, command.partition), {})
        yield from known
        if not any(start < command.offset < end for start, end in known.items()):
            yield from (frame.offset for frame in walk(data, command.offset, verify=False))


def _normal_text(step: Step, text: str) -> str:
    for pattern, replacement in _MASKS:
        text = re.sub(pattern, replacement, text)
    if step.request.startswith((b"stats topics", b"stats offsets")):
        # Java lists topics in the order of a hash table, this broker by name.
        text = "\n".join(sorted(text.splitlines()))
    return text
