"""Requests of the text protocol as bytes, and what is in their replies."""

from __future__ import annotations

from fix_broker import WireClient

from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame, walk
from metaq.protocols.text.commands import Get, Put, Reply, Result
from metaq.protocols.text.encode import encode


def put(topic: str, body: bytes, opaque: int, partition: int = 0) -> bytes:
    return encode(Put(topic, partition, body, 0, opaque, checksum(body)))


def get(topic: str, offset: int, opaque: int = 1, bytes_max: int = 1 << 20, partition: int = 0) -> bytes:
    return encode(Get(topic, "g", partition, offset, bytes_max, opaque))


def placed(reply: Reply) -> tuple[int, int, int]:
    assert isinstance(reply, Result)
    assert reply.code == 200, reply
    message_id, partition, offset = map(int, reply.text.split(" "))
    return message_id, partition, offset


def bodies(run: bytes) -> list[bytes]:
    return [frame.body for frame in walk(run)]


def read_all(client: WireClient, topic: str, end: int, partition: int = 0) -> bytes:
    run = b""
    while len(run) < end:
        run += client.value(get(topic, len(run), partition=partition))
    assert len(run) == end
    return run


def block_of(*messages: bytes) -> bytes:
    return b"".join(encode_frame(-1, 0, body) for body in messages)
