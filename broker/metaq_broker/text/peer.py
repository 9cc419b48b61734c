"""``Peer`` over MetaQ's text protocol: the requests of replication as typed calls on a ``BrokerLink``.

A broker of this project reports its ranges in ``stats segments`` and accepts ``copy``. A Java broker reports less, in
``stats offsets``, and accepts ``sync``, message by message.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from metaq.discovery.stats import parse_broker, parse_offsets
from metaq.errors import ProtocolError
from metaq.model import INT64_MAX, Address
from metaq.protocols.text.commands import Copy, Get, GetOffset, Reply, Result, Stats, Sync, Value, Version
from metaq.protocols.text.extensions import EXT_COPY, EXT_ORDINAL, EXT_SEGMENTS, EXT_STATE
from metaq.statuses import FORBIDDEN, NOT_FOUND, OK
from metaq_broker.log.state.state_table import StatePart
from metaq_broker.replication.gregor import PROMOTED
from metaq_broker.replication.peer import (
    CopiedMessage,
    CopiedRun,
    Declined,
    FetchedRun,
    PartitionKey,
    SlavePromoted,
    StoredMessage,
    StoredRange,
)
from metaq_broker.text.link import BrokerLink

_SEGMENTS_LINE: Final = re.compile(r"(\S+) (\d+) (-|[0-9a-f]{32}) (\d+) (\d+) (\d+)")
_STORED: Final = re.compile(r"(-?\d+) (\d+) (\d+)")
_CHECKSUM_LINE: Final = re.compile(r"^config_checksum (\d+)\r?$", re.MULTILINE)
_BYTES_LINE: Final = re.compile(r"^bytes (\d+)\r?$", re.MULTILINE)
_STATE: Final = re.compile(r"STATS\r\n(?:file ([0-9a-f]{16}) (\d+) (\d+) ([0-9a-zA-Z+/=]*)\r\n)?END\r\n")
_ROLE: Final = "role "

_WRONG: Final = 1
"""A checksum that no empty body has."""


class TextPeer:
    """Open one with ``connect``."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self.address, self.gone = link.address, link.gone
        self.check, self.close = link.check, link.close

    @classmethod
    async def connect(cls, address: Address, timeout_s: float) -> TextPeer:
        return cls(await BrokerLink.open(address, timeout_s))

    @property
    def takes_copies(self) -> bool:
        return EXT_COPY in self._link.extensions

    @property
    def reports_segments(self) -> bool:
        return EXT_SEGMENTS in self._link.extensions

    @property
    def reports_state(self) -> bool:
        return EXT_STATE in self._link.extensions

    async def ping(self) -> None:
        """Return when it has answered a ``version``, with any reply."""
        await self._link.ask(Version)

    # ---- about the broker

    async def broker_id(self) -> int:
        return parse_broker(await self._link.stats("")).broker_id

    async def role(self) -> str | None:
        """Return ``role`` of ``stats replication``."""
        lines = (await self._link.stats("replication")).split("\r\n")
        return next((line.removeprefix(_ROLE) for line in lines if line.startswith(_ROLE)), None)

    async def config_checksum(self) -> str | None:
        found = _CHECKSUM_LINE.search(await self._link.stats(""))
        return None if found is None else found[1]

    async def config_text(self) -> bytes:
        """Return the answer to ``stats config``, as the bytes of the file."""
        return (await self._link.stats("config")).encode("utf-8", "surrogateescape")

    async def stored_ranges(self) -> dict[PartitionKey, StoredRange]:
        """Return the answer to ``stats segments``, or to ``stats offsets``."""
        if self.reports_segments:
            return parse_segments(await self._link.stats("segments"))
        offsets = parse_offsets(await self._link.stats("offsets"))
        return {partition_key: StoredRange(range_.start, range_.end) for partition_key, range_ in offsets.items()}

    async def state_part(self, number: int, position: int, bytes_max: int) -> StatePart | None:
        """Return the answer to ``stats state:FILE:POSITION:BYTES``."""
        return parse_state_part(await self._link.stats(f"state:{number:016x}:{position}:{bytes_max}"))

    # ---- about one partition

    async def ordinal(self, partition_key: PartitionKey, group: str, offset: int) -> int | None:
        """Return the answer to ``offset ... ordinal``."""
        if EXT_ORDINAL not in self._link.extensions:
            return None
        topic, index = partition_key
        ask = partial(GetOffset, topic, group, index, offset, mode="ordinal")
        return int(await self._link.text(ask, "offset ... ordinal"))

    async def read(self, partition_key: PartitionKey, group: str, offset: int, bytes_max: int) -> bytes | Declined:
        """Return the data of one ``get``."""
        topic, index = partition_key
        return _bytes(await self._link.ask(partial(Get, topic, group, index, offset, bytes_max)))

    async def fetch(
        self, partition_key: PartitionKey, group: str, offset: int, bytes_max: int
    ) -> FetchedRun | Declined:
        """Return the data of one ``get``, and its segment from the ``offset`` that is sent with it."""
        topic, index = partition_key
        starts = self._link.send(partial(GetOffset, topic, group, index, offset, mode="segment"))
        runs = self._link.send(partial(Get, topic, group, index, offset, bytes_max))
        start, run = await self._link.settle(starts), _bytes(await self._link.settle(runs))
        if isinstance(run, Declined):
            return run
        if not isinstance(start, Result) or start.code != OK:
            return Declined(f"its segment is not known: {_words(start)}")
        return FetchedRun(int(start.text), run)

    async def copy(self, copied: CopiedRun) -> int | Declined:
        topic, index = copied.partition_key
        starts = copied.offset, copied.segment_start, copied.first, copied.ordinal
        reply = await self._link.ask(partial(Copy, topic, index, copied.run, *starts, copied.incarnation))
        self._check_promoted(reply)
        if isinstance(reply, Result) and reply.code == OK and reply.text.isdecimal():
            return int(reply.text)
        return Declined(_words(reply))

    async def opened(self, partition_keys: Sequence[PartitionKey], group: str) -> list[StoredRange | Declined]:
        """Send a ``sync`` with a wrong checksum for each, which opens the partition and is refused; ask for its ends.

        Raises:
            ProtocolError: It was not refused.
        """
        sent = [self._link.send(partial(_wrong_sync, *each)) for each in partition_keys]
        answers = [await self._link.settle(future) for future in sent]
        for answer in answers:
            self._check_promoted(answer)
            if not isinstance(answer, Result) or answer.code == OK:
                raise ProtocolError("a sync with a wrong checksum was not refused", _words(answer).encode())
        ends = [
            self._link.send(partial(GetOffset, topic, group, index, offset))
            for topic, index in partition_keys
            for offset in (0, INT64_MAX)
        ]
        found = [await self._link.settle(future) for future in ends]
        return [_range_of(*three) for three in zip(answers, found[::2], found[1::2], strict=True)]

    async def stored_bytes(self, topics: Sequence[str]) -> list[int | None]:
        """Return ``bytes`` of ``stats TOPIC``."""
        sent = [self._link.send(partial(Stats, topic)) for topic in topics]
        texts = [_words(await self._link.settle(future)) for future in sent]
        found = [_BYTES_LINE.search(text) for text in texts]
        return [None if match is None else int(match[1]) for match in found]

    async def store(self, messages: Sequence[CopiedMessage]) -> list[StoredMessage | Declined]:
        sent = [self._link.send(partial(_sync, message)) for message in messages]
        replies = [await self._link.settle(future) for future in sent]
        for reply in replies:
            self._check_promoted(reply)
        return [_stored(reply) for reply in replies]

    def _check_promoted(self, reply: Reply) -> None:
        if isinstance(reply, Result) and reply.code == FORBIDDEN and reply.text == PROMOTED:
            raise SlavePromoted(self.address)


def _sync(message: CopiedMessage, opaque: int) -> Sync:
    topic, index = message.partition_key
    return Sync(topic, index, message.body, message.flag, message.message_id, opaque, message.checksum)


def _wrong_sync(topic: str, index: int, opaque: int) -> Sync:
    return Sync(topic, index, b"", 0, 0, opaque, _WRONG)


def _range_of(refusal: Reply, start: Reply, end: Reply) -> StoredRange | Declined:
    if isinstance(start, Result) and isinstance(end, Result) and start.code == end.code == OK:
        return StoredRange(int(start.text), int(end.text))
    return Declined(_words(refusal))


def _bytes(reply: Reply) -> bytes | Declined:
    if isinstance(reply, Value):
        return bytes(reply.data) if reply.data else Declined("nothing, though there is something")
    return Declined(_words(reply), absent=isinstance(reply, Result) and reply.code == NOT_FOUND)


def _stored(reply: Reply) -> StoredMessage | Declined:
    found = _STORED.fullmatch(reply.text) if isinstance(reply, Result) and reply.code == OK else None
    return Declined(_words(reply)) if found is None else StoredMessage(*map(int, found.groups()))


def _words(reply: Reply) -> str:
    return f"{reply.code} {reply.text}" if isinstance(reply, Result) else "a value"


def parse_state_part(text: str) -> StatePart | None:
    """Parse the answer to ``stats state``; ``None`` if it is empty.

    Raises:
        ProtocolError: It has another form.
    """
    match = _STATE.fullmatch(text)
    try:
        if match is None:
            raise ValueError("no match")
        data = binascii.a2b_base64(match[4] or "", strict_mode=True)
    except ValueError:
        wrong = text[:200].encode(errors="replace")
        raise ProtocolError("an answer to stats state that cannot be read", wrong) from None
    return None if match[1] is None else StatePart(int(match[1], 16), int(match[2]), int(match[3]), data)


def parse_segments(text: str) -> dict[PartitionKey, StoredRange]:
    """Parse the answer to ``stats segments``. A partition whose incarnation is not durable yet is left out.

    Raises:
        ProtocolError: A line has another form.
    """
    found: dict[PartitionKey, StoredRange] = {}
    lines = text.split("\r\n")
    if lines[0] != "STATS" or "END" not in lines:
        raise ProtocolError("the answer to stats segments is not STATS ... END", text.encode(errors="replace"))
    for line in lines[1 : lines.index("END")]:
        match = _SEGMENTS_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError("a line of stats segments that cannot be read", line.encode(errors="replace"))
        if match[3] != "-":
            numbers = int(match[4]), int(match[6])
            found[match[1], int(match[2])] = StoredRange(*numbers, match[3], int(match[5]))
    return found
