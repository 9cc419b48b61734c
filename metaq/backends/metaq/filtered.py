"""Reads only messages of certain types: the broker filters before it sends.

From a broker without ``fget`` everything is read and filtered here, with the same result.

Source: docs/protocol.md, "fget".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from metaq.backends.metaq.fetch import GROUP, AtEnd, Moved, Run, fetch, read_outcome
from metaq.backends.metaq.session import Session
from metaq.errors import CorruptFrame, ProtocolError
from metaq.formats.frames import HEADER_BYTES, Frame, frame_bytes, walk
from metaq.formats.message_types import Selection, decode_filtered, encode_types, select
from metaq.protocols.text.commands import Get, GetFiltered, Result, Value
from metaq.protocols.text.extensions import EXT_FILTER
from metaq.statuses import MOVED, NOT_FOUND

SCAN_BYTES: Final = 1 << 20
"""Default number of bytes of the log that one request scans."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The matching messages, in order, each with its own offset; possibly none. Continue at ``next_offset``."""

    frames: Sequence[Frame]
    next_offset: int


def fetch_types(
    session: Session,
    topic: str,
    partition_index: int,
    offset: int,
    types: Iterable[str],
    max_bytes: int = SCAN_BYTES,
    group: str = GROUP,
) -> Filtered | AtEnd | Moved:
    """Return the messages of ``types`` (their attributes) among about ``max_bytes`` (>= 1) bytes from ``offset``.

    ``offset`` must be the start of a frame. ``Filtered.next_offset`` is always greater than ``offset``, even if no
    message matched.

    Raises:
        ValueError: A type is not of letters, digits and underscores, or none is given.
        CorruptFrame: A frame fails its checksum.
        BrokerError: A refusal, for example 403 for a closed partition, 400 for an offset inside a message.
        ConnectionFailed, DeadlineExceeded, ProtocolError: The session is closed.
    """
    names = tuple(types)
    wanted = encode_types(names)
    if EXT_FILTER not in session.extensions:
        return _fetch_and_select(session, Get(topic, group, partition_index, offset, max_bytes, 0), wanted)
    command = GetFiltered(topic, group, partition_index, offset, max_bytes, names, 0)
    reply = session.call(command)
    if not isinstance(reply, Value):
        return _refusal(session, command, reply)
    try:
        next_offset, frames = decode_filtered(reply.data)
    except ProtocolError as fault:
        raise session.protocol_error(fault.what) from None
    if next_offset <= offset:
        raise session.protocol_error(f"a filtered get at {offset} continues at {next_offset}")
    return Filtered(frames, next_offset)


def messages_of_types(
    session: Session, topic: str, partition_index: int, start: int, types: Iterable[str], max_bytes: int = SCAN_BYTES
) -> Iterator[Frame]:
    """Yield the messages of ``types`` from ``start`` to the readable end; deleted messages are skipped. Raises as
    ``fetch_types``.
    """
    names, offset = tuple(types), start
    while not isinstance(found := fetch_types(session, topic, partition_index, offset, names, max_bytes), AtEnd):
        if isinstance(found, Moved):
            offset = found.offset
            continue
        yield from found.frames
        offset = found.next_offset


def _refusal(session: Session, command: GetFiltered, reply: Result) -> AtEnd | Moved:
    if reply.code not in (MOVED, NOT_FOUND):
        session.text_of(reply, command)
    outcome = read_outcome(session, Get(*command[:5], opaque=0), reply)
    assert not isinstance(outcome, Run)  # a 200 is never an error
    return outcome


def _fetch_and_select(session: Session, command: Get, types: frozenset[bytes]) -> Filtered | AtEnd | Moved:
    """Implement ``fetch_types`` for a broker without the extension."""
    found = fetch(session, command.topic, command.partition, command.offset, command.max_bytes, command.group)
    if not isinstance(found, Run):
        return found
    data = found.data
    while (missing := _first_frame_bytes(data) - len(data)) > 0:
        more = fetch(session, command.topic, command.partition, command.offset + len(data), missing, command.group)
        if not isinstance(more, Run):
            return AtEnd(command.offset, "the message is not complete yet")
        data += more.data
    selection = select(data, command.offset, types)
    if selection.next_offset == command.offset:
        raise CorruptFrame(f"{command.topic} partition {command.partition}", command.offset, selection.fault or "cut")
    return Filtered(_frames(selection), selection.next_offset)


def _first_frame_bytes(run: bytes) -> int:
    """How long the frame at the start is, as far as its length is known; a negative one counts as none."""
    return max(HEADER_BYTES, frame_bytes(run)) if len(run) >= HEADER_BYTES else HEADER_BYTES


def _frames(selection: Selection) -> list[Frame]:
    return [found for offset, frame in selection.kept for found in walk(frame, offset)]
