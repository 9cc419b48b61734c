"""Reads the messages of certain types in a byte range, filtered by the broker, one request ahead of the caller.

Each reply contains the offset to continue at, so only one request is in flight: the next one is posted when a reply has
arrived, before the caller works on it. Frames are passed on as received, each with its offset in front, unparsed and
unchecked.

Source: docs/protocol.md, "fget".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from metaq.backends.metaq.fetch import GROUP
from metaq.backends.metaq.session import Session
from metaq.errors import DataMissing, ExtensionMissing, MetaqError, OffsetMoved
from metaq.formats.frames import HEADER_BYTES, frame_bytes
from metaq.formats.message_types import OFFSET_BYTES, encode_types
from metaq.model import OffsetRange
from metaq.net.retry import DEFAULT_POLICY, Attempts, RetryPolicy
from metaq.protocols.text.commands import GetFiltered, Reply, Value
from metaq.protocols.text.extensions import EXT_FILTER
from metaq.statuses import MOVED, NOT_FOUND


@dataclass(frozen=True, slots=True)
class AddressedFrames:
    """Frames, each with its offset (int64) in front; possibly none. Everything before ``end`` was scanned."""

    data: bytes
    end: int


def read_types(
    session: Session,
    topic: str,
    partition_index: int,
    offset_range: OffsetRange,
    types: tuple[str, ...],
    fetch_bytes: int = 1 << 20,
    *,
    policy: RetryPolicy = DEFAULT_POLICY,
    group: str = GROUP,
) -> Generator[AddressedFrames, None, None]:
    """Yield the frames of ``types`` whose first byte is in ``offset_range``, in order.

    ``offset_range.start`` must be a frame's first byte. One request scans about ``fetch_bytes`` of the log. After a
    connection failure the same ``session`` is reconnected, as in ``read_range``.

    Raises:
        ExtensionMissing: The broker does not filter (any more, after a reconnection): read everything instead.
        OffsetMoved: The bytes are deleted, or known to be damaged. Earlier messages were yielded.
        DataMissing: The partition ends before ``offset_range.end``.
        BrokerError: 500: the next message is damaged; 400: no message begins there; 403: the partition is closed.
        ConnectionFailed, DeadlineExceeded, ProtocolError: Retrying did not help.
        ValueError: A type is not valid.
    """
    encode_types(types)
    attempts = Attempts(policy, session.clock)
    command = GetFiltered(topic, group, partition_index, offset_range.start, fetch_bytes, types, 0)
    return _TypeReader(session, command, offset_range, attempts).chunks()


class _TypeReader:
    def __init__(self, session: Session, command: GetFiltered, offset_range: OffsetRange, attempts: Attempts) -> None:
        self._session, self._command, self._attempts = session, command, attempts
        self._offset, self._end = offset_range.start, offset_range.end
        self._asked: int | None = None

    def chunks(self) -> Generator[AddressedFrames, None, None]:
        try:
            while self._offset < self._end:
                chunk = self._read(self._reply())
                self._offset = chunk.end
                self._ask_ahead()
                yield AddressedFrames(
                    _before(chunk.data, self._end) if chunk.end > self._end else chunk.data, chunk.end
                )
        finally:
            self._abandon()

    def _reply(self) -> Reply:
        """Return the reply for ``offset``, reconnecting as often as the policy allows."""
        while True:
            try:
                self._ask()
                assert self._asked is not None
                reply = self._session.wait(self._asked)
                self._asked = None
                if not isinstance(reply, Value) and reply.code not in (MOVED, NOT_FOUND):
                    self._session.text_of(reply, self._question())
            except MetaqError as error:
                self._abandon()
                self._attempts.recover(self._session, error)
                continue
            self._attempts.progressed()
            return reply

    def _read(self, reply: Reply) -> AddressedFrames:
        if isinstance(reply, Value):
            return self._parsed(reply.data)
        if reply.code == MOVED:
            if not reply.text.isdecimal():
                raise self._session.protocol_error(f"moved (301) to {reply.text[:40]!r}, which is not an offset")
            raise OffsetMoved(self._where, self._offset, int(reply.text))
        if reply.code == NOT_FOUND:
            raise DataMissing(self._where, self._offset, self._end, reply.text)
        raise self._session.protocol_error("a filtered get was answered with 200 and a text")

    def _parsed(self, body: bytes) -> AddressedFrames:
        next_offset = int.from_bytes(body[:OFFSET_BYTES], signed=True)
        if len(body) < OFFSET_BYTES or next_offset <= self._offset:
            raise self._session.protocol_error(f"a filtered get at {self._offset} continues at {next_offset}")
        return AddressedFrames(body[OFFSET_BYTES:], next_offset)

    def _ask(self) -> None:
        if EXT_FILTER not in self._session.extensions:
            raise ExtensionMissing(self._session.address, EXT_FILTER, "reading only some types of messages")
        if self._asked is None:
            self._asked = self._session.post(self._question())

    def _ask_ahead(self) -> None:
        """Post the next request before the caller works on a reply. A failure is raised later, when the answer is
        needed.
        """
        if self._offset < self._end:
            try:
                self._ask()
            except MetaqError:
                self._abandon()

    def _question(self) -> GetFiltered:
        max_bytes = min(self._command.max_bytes, self._end - self._offset)
        return self._command._replace(offset=self._offset, max_bytes=max_bytes)

    def _abandon(self) -> None:
        if self._asked is not None:
            self._session.abandon(self._asked)
            self._asked = None

    @property
    def _where(self) -> str:
        return f"{self._command.topic} partition {self._command.partition} of broker {self._session.address}"


def _before(data: bytes, end: int) -> bytes:
    """Return the frames whose offset is below ``end``; stops at an impossible length, which the caller reports."""
    at = 0
    while at + OFFSET_BYTES + HEADER_BYTES <= len(data):
        if int.from_bytes(data[at : at + OFFSET_BYTES], signed=True) >= end:
            return data[:at]
        size = frame_bytes(data, at + OFFSET_BYTES)
        if size < HEADER_BYTES:
            break
        at += OFFSET_BYTES + size
    return data
