"""Replies to a run of puts: made as soon as the messages are written, sent once they are durable.

A success is ``result 200 LENGTH OPAQUE`` + ``MSGID PARTITION OFFSET``. Making them together while the disk syncs costs
a fraction of making each on its own. Source: docs/protocol.md (put).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

from metaq.protocols.text.codes import OK
from metaq.protocols.text.commands import Result
from metaq.protocols.text.encode import encode
from metaq_broker.engine.outcomes import Appended, Refusal
from metaq_broker.frontends.net.replies import ReplyQueue
from metaq_broker.frontends.text.refusals import Refused


class PutReplies:
    """The slot of ``count`` puts that went to ``groups`` partitions; it is complete when every group has reported."""

    def __init__(self, queue: ReplyQueue, count: int, groups: int) -> None:
        self._slot = queue.pending(count)
        self._groups = groups
        self._replies: list[bytes] | None = [b""] * count if groups > 1 else None

    def refuse(self, positions: Sequence[int], opaques: Sequence[int], refused: Refused) -> None:
        """Report a group of which nothing was stored."""
        self._report(positions, [encode(Result(refused.code, refused.text, opaque)) for opaque in opaques])

    def stored(
        self,
        positions: Sequence[int],
        opaques: Sequence[int],
        appended: Appended,
        worded: Callable[[Refusal], Refused],
    ) -> Callable[[Refusal | None], None]:
        """Prepare the replies of a group; return what reports them, with ``None`` or with a refusal for all.

        ``worded`` makes the text of a refusal.
        """
        ready = success_replies(opaques, appended) if self._replies is None and not appended.rejected else None
        replies = [] if ready is not None else _single_replies(opaques, appended, worded)

        def durable(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._report(positions, _refusals(opaques, appended, refusal, worded))
            elif ready is not None:
                self._slot.complete(ready)
            else:
                self._report(positions, replies)

        return durable

    def _report(self, positions: Sequence[int], replies: Sequence[bytes]) -> None:
        if self._replies is None:
            self._slot.complete(b"".join(replies))
            return
        for position, reply in zip(positions, replies, strict=True):
            self._replies[position] = reply
        self._groups -= 1
        if not self._groups:
            self._slot.complete(b"".join(self._replies))


def success_replies(opaques: Sequence[int], appended: Appended) -> bytes:
    """Return the replies of messages that were all stored, back to back."""
    ids, offsets = appended.message_ids, appended.offsets
    id_chars, offset_chars = len(str(ids[0])), len(str(offsets[0]))
    if len(str(ids[-1])) != id_chars or len(str(offsets[-1])) != offset_chars:
        return b"".join(map(_success_reply, opaques, repeat(appended), range(len(opaques))))
    # Ids and offsets grow, so all texts are as long as the first and the last: one template serves the whole run.
    length = id_chars + len(str(appended.index)) + offset_chars + 2
    template = f"result {OK} {length} %d\r\n%d {appended.index} %d".encode()
    return template * len(opaques) % tuple(chain.from_iterable(zip(opaques, ids, offsets, strict=True)))


def _success_reply(opaque: int, appended: Appended, position: int) -> bytes:
    text = f"{appended.message_ids[position]} {appended.index} {appended.offsets[position]}"
    return encode(Result(OK, text, opaque))


def _single_replies(opaques: Sequence[int], appended: Appended, worded: Callable[[Refusal], Refused]) -> list[bytes]:
    rejected = appended.rejected
    return [
        encode(Result(*worded(rejected[position]), opaque))
        if position in rejected
        else _success_reply(opaque, appended, position)
        for position, opaque in enumerate(opaques)
    ]


def _refusals(
    opaques: Sequence[int], appended: Appended, refusal: Refusal, worded: Callable[[Refusal], Refused]
) -> list[bytes]:
    rejected = appended.rejected
    return [encode(Result(*worded(rejected.get(position, refusal)), opaque)) for position, opaque in enumerate(opaques)]
