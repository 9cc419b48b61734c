"""The text protocol: requests as bytes, what is in their replies, and decoders that are fed in three ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fix_broker import WireClient

from metaq.errors import ProtocolError
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_frame, walk
from metaq.protocols.text.commands import Get, Put, Reply, Result
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder
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


TRAILING = b"version 4711\r\nresult 200 0"
"""What may stand behind a command: a whole one and the beginning of something else."""


def take(decoder: CommandDecoder | ReplyDecoder) -> list[object]:
    """Return all that is complete now; a ProtocolError ends the list as its class."""
    step = decoder.next_command if isinstance(decoder, CommandDecoder) else decoder.next_reply
    taken: list[object] = []
    try:
        while (item := step()) is not NEED_DATA:
            taken.append(item)
    except ProtocolError:
        taken.append(ProtocolError)
    return taken


def feed(decoder: CommandDecoder | ReplyDecoder, chunks: Iterable[bytes]) -> list[object]:
    """Return all that comes out while the chunks go in, with a look after every chunk."""
    taken: list[object] = []
    for chunk in chunks:
        decoder.receive_data(chunk)
        taken += take(decoder)
        if taken and taken[-1] is ProtocolError:
            break
    return taken


def byte_by_byte(stream: bytes) -> Iterator[bytes]:
    return (stream[at : at + 1] for at in range(len(stream)))
