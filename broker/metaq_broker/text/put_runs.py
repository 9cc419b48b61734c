"""Runs of plain puts: their messages as frames, and their replies, made while the disk syncs.

A success is ``result 200 LENGTH OPAQUE`` + ``MSGID PARTITION OFFSET``. Making the replies of a run together costs a
fraction of making each on its own. Source: docs/protocol.md (put).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from operator import add
from typing import Final

from metaq.formats.checksum import checksum
from metaq.formats.frames import HEADER_BYTES, pack_header
from metaq.protocols.text.codes import OK
from metaq.protocols.text.commands import Result
from metaq.protocols.text.encode import encode
from metaq.protocols.text.put_runs import PutRun
from metaq_broker.log.engine.blocks import consecutive
from metaq_broker.log.engine.outcomes import Appended, Refusal
from metaq_broker.serve.replies import ReplyQueue
from metaq_broker.text.refusals import Refused

NO_CHECKSUM: Final = (None, -1)
"""What a put carries when it does not say its checksum."""

Worded = Callable[[Refusal], Refused]
"""Makes code and sentence of a refusal."""


class GroupedReplies:
    """The slot of ``count`` puts that went to ``groups`` partitions; complete when every group has reported."""

    def __init__(self, queue: ReplyQueue, count: int, groups: int) -> None:
        self._slot = queue.pending(count)
        self._groups = groups
        self._replies = [b""] * count

    def report(self, positions: Sequence[int], replies: Sequence[bytes]) -> None:
        """Give the replies of one group, whose puts stand at ``positions``."""
        for position, reply in zip(positions, replies, strict=True):
            self._replies[position] = reply
        self._groups -= 1
        if not self._groups:
            self._slot.complete(b"".join(self._replies))


def frames_of(run: PutRun) -> bytearray:
    """Return the messages of a run as frames without ids. Their checksums are what the puts say, right or wrong."""
    checksums = run.checksums
    if None in checksums or -1 in checksums:
        checksums = [
            checksum(body) if given in NO_CHECKSUM else given for given, body in zip(checksums, run.bodies, strict=True)
        ]
    heads = map(pack_header, map(len, run.bodies), checksums, repeat(0), run.flags)
    return bytearray().join(map(add, heads, run.bodies))


def success_replies(run: PutRun, appended: Appended, *, joined: bool) -> list[bytes]:
    """Return the replies of a run whose messages were all stored: one each, or ``joined``."""
    if len(run.opaques) == 1:
        text = f"{appended.ids.first} {appended.partition} {appended.first_offset}"
        return [f"result {OK} {len(text)} {run.opaques[0]}\r\n{text}".encode()]
    ids, opaques = consecutive(appended.ids), run.opaques
    offsets = list(
        accumulate(map(len, run.bodies), lambda at, size: at + size + HEADER_BYTES, initial=appended.first_offset)
    )
    offsets.pop()
    id_chars, offset_chars = len(str(ids[0])), len(str(offsets[0]))
    if not joined or len(str(ids[-1])) != id_chars or len(str(offsets[-1])) != offset_chars:
        return [
            encode(Result(OK, f"{message_id} {appended.partition} {offset}", opaque))
            for message_id, offset, opaque in zip(ids, offsets, opaques, strict=True)
        ]
    # Ids and offsets grow, so all texts are as long as the first and the last: one template serves the whole run.
    length = id_chars + len(str(appended.partition)) + offset_chars + 2
    template = f"result {OK} {length} %d\r\n%d {appended.partition} %d".encode()
    return [template * len(opaques) % tuple(chain.from_iterable(zip(opaques, ids, offsets, strict=True)))]


def mixed_replies(run: PutRun, appended: Appended, worded: Worded) -> list[bytes]:
    """Return the replies of a run of which some messages were rejected, in its order."""
    kept = [position for position in range(len(run.bodies)) if position not in appended.rejected]
    stored = dict(zip(kept, success_replies(run.picked(kept), appended, joined=False), strict=True))
    refused = refusal_replies(run.opaques, None, appended.rejected, worded)
    return [stored.get(position) or refused[position] for position in range(len(run.bodies))]


def refusal_replies(
    opaques: Sequence[int], refusal: Refusal | None, rejected: Mapping[int, Refusal], worded: Worded
) -> list[bytes]:
    """Return refusals: of each put its own, or ``refusal``; empty where it has none."""
    reasons = [rejected.get(position, refusal) for position in range(len(opaques))]
    return [
        b"" if reason is None else encode(Result(*worded(reason), opaque))
        for reason, opaque in zip(reasons, opaques, strict=True)
    ]
