"""Plain puts, decoded together: one event for all that follow each other, their messages as one block of frames.

The line that clients send is ``put TOPIC PARTITION LENGTH FLAG CHECKSUM OPAQUE``. Puts of this form are taken apart in
a loop that does as little as possible for each; the numbers are read together afterwards. Whatever is not of that form
ends the loop, and means what ``metaq.protocols.text.lines`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from metaq.formats.checksum import checksum
from metaq.formats.frame_block import FrameBlock
from metaq.model import INT32_MAX, INT32_MIN
from metaq.protocols.text.commands import Put
from metaq.protocols.text.lines import usual_put_head
from metaq.protocols.text.receive_buffer import CRLF, Inbox

_COMMA = b","
PUT = b"put "
"""How every put begins."""

NO_CHECKSUM: Final = (None, -1)
"""What a put carries when it does not say its checksum."""


class Puts(NamedTuple):
    """Plain puts, at least one, none in a transaction: columns of equal length, and the frames of their messages.

    The checksum in a frame is the one that its put says, right or wrong, or the body's if it says none. Message ids are
    0.
    """

    topics: Sequence[str]
    partitions: Sequence[int]
    frames: FrameBlock
    opaques: Sequence[int]

    @classmethod
    def of(cls, puts: Sequence[Put]) -> Puts:
        """Return the event of some puts."""
        topics, partitions, bodies, flags, opaques, checksums, _ = zip(*puts, strict=True)
        return cls(topics, partitions, _frames(bodies, checksums, flags), opaques)

    def behind(self, puts: Sequence[Put]) -> Puts:
        """Return ``puts``, at least one, and then these."""
        first = Puts.of(puts)
        return Puts(
            (*first.topics, *self.topics),
            (*first.partitions, *self.partitions),
            FrameBlock.joined([first.frames, self.frames]),
            (*first.opaques, *self.opaques),
        )


def _frames(bodies: Sequence[bytes], checksums: Sequence[int | None], flags: Sequence[int]) -> FrameBlock:
    if None in checksums or -1 in checksums:
        pairs = zip(checksums, bodies, strict=True)
        checksums = [checksum(body) if given in NO_CHECKSUM else given for given, body in pairs]
    return FrameBlock.of_bodies(bodies, checksums, flags)  # type: ignore[arg-type]  # none of them is None


def take_puts(inbox: Inbox, count_max: int, line_bytes_max: int, body_bytes_max: int) -> Puts | int:
    """Take the next whole puts of the usual form, up to ``count_max``.

    If there are none, return 0. If one of them turned out to have another form, return their number: decode these one
    by one, so that no byte is scanned repeatedly.
    """
    data, start = inbox.data, inbox.pos
    if not data.startswith(PUT, start):
        return 0
    fields: list[tuple[str, int, int, int]] = []
    bodies: list[bytes] = []
    numbers: list[bytes] = []
    head, known = b"", None
    while len(bodies) < count_max:
        line_end = data.find(CRLF, start)
        if not 0 <= line_end - start <= line_bytes_max:
            break
        # Heads repeat: skip the look-up for a head that equals the previous one.
        if known is None or not data.startswith(head, start):
            head = data[start:line_end].rsplit(b" ", 2)[0] + b" "
            known = usual_put_head(head[:-1])
            if known is None or known[2] > body_bytes_max:
                break
        end = line_end + 2 + known[2]
        if end > len(data):
            break
        fields.append(known)
        numbers.append(data[start + len(head) : line_end])
        bodies.append(data[line_end + 2 : end])
        start = end
    read = _read_numbers(numbers) if numbers else None
    if read is None:
        return len(numbers)
    inbox.pos = start
    count = len(fields)
    if fields.count(fields[0]) == count:
        topic, partition, _, flag = fields[0]
        return Puts((topic,) * count, (partition,) * count, _frames(bodies, read[0], (flag,) * count), read[1])
    topics, partitions, _, flags = zip(*fields, strict=True)
    return Puts(topics, partitions, _frames(bodies, read[0], flags), read[1])


def _read_numbers(numbers: list[bytes]) -> tuple[list[int], list[int]] | None:
    """Return the checksums and the opaques of ``CHECKSUM OPAQUE``; ``None`` if one of them is not a plain number."""
    tokens = b" , ".join(numbers).split(b" ")
    if len(tokens) != 3 * len(numbers) - 1 or tokens[2::3].count(_COMMA) != len(numbers) - 1:
        return None
    # A checksum of -1 is "not given", and the Java client's opaques start at -2147483648.
    if not b"".join((*tokens[::3], *tokens[1::3])).replace(b"-", b"").isdigit():
        return None
    try:
        checksums, opaques = list(map(int, tokens[::3])), list(map(int, tokens[1::3]))
    except ValueError:  # an empty token, or a sign inside
        return None
    if min(min(checksums), min(opaques)) < INT32_MIN or max(max(checksums), max(opaques)) > INT32_MAX:
        return None
    return checksums, opaques
