"""Three ways to feed the same bytes, and what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaq.errors import ProtocolError
from metaq.protocols.text.decode import NEED_DATA, CommandDecoder, ReplyDecoder

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
