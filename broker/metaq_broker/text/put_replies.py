"""The replies to plain puts that were appended together, made while the disk syncs.

A success is ``result 200 LENGTH OPAQUE`` + ``MSGID PARTITION OFFSET``. Making the replies of a run together costs a
fraction of making each on its own. Source: docs/protocol.md (put).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metaq.formats.frame_block import consecutive
from metaq.protocols.text.encode import encode_result
from metaq.statuses import OK
from metaq_broker.log.engine.appends import Append
from metaq_broker.log.engine.outcomes import Appended, Refusal
from metaq_broker.serve.replies import ReplyQueue
from metaq_broker.text.refusals import Refused

Worded = Callable[[Refusal], Refused]
"""Returns the status code and the text of a refusal."""


class GroupedReplies:
    """The slot of ``count`` puts to ``groups`` partitions; complete when every group has reported."""

    def __init__(self, queue: ReplyQueue, count: int, groups: int) -> None:
        self._slot = queue.pending(count)
        self._groups = groups
        self._replies = [b""] * count

    def report(self, positions: Sequence[int], replies: Sequence[bytes]) -> None:
        """Store the replies of one group, whose puts have these ``positions``."""
        for position, reply in zip(positions, replies, strict=True):
            self._replies[position] = reply
        self._groups -= 1
        if not self._groups:
            self._slot.complete(b"".join(self._replies))


def stored_replies(unit: Append, opaques: Sequence[int], appended: Appended, worded: Worded) -> list[bytes]:
    """Return the replies to the puts of a unit, or to the one batch that it is."""
    if appended.rejected:
        return _mixed_replies(unit, opaques, appended, worded)
    ids: Sequence[int] = (appended.ids.first,)
    starts: Sequence[int] = (0,)
    if len(opaques) > 1:  # otherwise it is one put, or a batch, whose reply is about its first message
        ids, starts = consecutive(appended.ids), (0, *unit.block.ends[:-1])
    partition, first, replies = appended.partition, appended.first_offset, []
    for opaque, message_id, start in zip(opaques, ids, starts, strict=True):
        text = f"{message_id} {partition} {first + start}"
        replies.append(f"result {OK} {len(text)} {opaque}\r\n{text}".encode())
    return replies


def _mixed_replies(unit: Append, opaques: Sequence[int], appended: Appended, worded: Worded) -> list[bytes]:
    kept = [position for position in range(len(opaques)) if position not in appended.rejected]
    stored, puts = appended._replace(rejected={}), unit._replace(block=unit.block.picked(kept))
    replies = stored_replies(puts, [opaques[position] for position in kept], stored, worded)
    by_position = dict(zip(kept, replies, strict=True))
    refused = refusal_replies(opaques, None, appended.rejected, worded)
    return [by_position.get(position) or refused[position] for position in range(len(opaques))]


def refusal_replies(
    opaques: Sequence[int], refusal: Refusal | None, rejected: Mapping[int, Refusal], worded: Worded
) -> list[bytes]:
    """Return the error replies of puts: each put's own, or else the text of ``refusal``; empty without one."""
    reasons = [rejected.get(position, refusal) for position in range(len(opaques))]
    return [
        b"" if reason is None else encode_result(*worded(reason), opaque)
        for reason, opaque in zip(reasons, opaques, strict=True)
    ]
