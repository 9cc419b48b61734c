"""A run of puts, decoded as the frames that are to be stored: what a broker with compiled code takes them apart into.

The code that does it is the caller's (``Framer``): this is a package without compiled code. What it does not take means
what ``metaq.protocols.text.put_runs`` and ``metaq.protocols.text.lines`` say.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from metaq.formats.frames import walk
from metaq.model import Buffer
from metaq.protocols.text.lines import usual_put_head
from metaq.protocols.text.put_runs import PUT, PutRun
from metaq.protocols.text.receive_buffer import Inbox

RUN_BYTES_MIN: Final = 4096
RUN_PUTS_MIN: Final = 16
"""Bytes and puts below which a run is not worth it."""


class Opaques(Protocol):
    """The opaques of a run, in order."""

    def tolist(self) -> list[int]:
        """Return them as a list."""


class FramedPuts(NamedTuple):
    """Plain puts to one partition, none in a transaction, as ``block``: their frames, back to back, with ids of 0.

    Each frame's checksum is what its put says, right or wrong. The block is the framer's: it holds until the next run.
    """

    topic: str
    partition: int
    block: Buffer
    opaques: Opaques
    messages: int

    def run(self) -> PutRun:
        """Return the same puts as columns."""
        frames = list(walk(self.block, verify=False))
        topics, partitions = (self.topic,) * self.messages, (self.partition,) * self.messages
        flags, checksums = [frame.flag for frame in frames], [frame.checksum for frame in frames]
        return PutRun(topics, partitions, flags, checksums, [frame.body for frame in frames], self.opaques.tolist())


class Framed(NamedTuple):
    """What a framer made: ``size`` bytes of input became ``block``, so many frames."""

    size: int
    block: Buffer
    opaques: Opaques
    messages: int


class Framer(Protocol):
    """Makes frames of the puts at ``data[start:]``, all of which begin with the first ``prefix_bytes`` there.

    At most ``count_max``, with lines and bodies within the limits, and only such as are whole and of the usual form.
    ``None``: none of them, or not now.
    """

    def __call__(
        self, data: bytes, start: int, prefix_bytes: int, count_max: int, line_bytes_max: int, body_bytes_max: int
    ) -> Framed | None: ...


def take_framed(
    inbox: Inbox, framer: Framer, count_max: int, line_bytes_max: int, body_bytes_max: int
) -> FramedPuts | None:
    """Take the usual puts to one partition that are next and whole, up to ``count_max``, if they are many."""
    data, start = inbox.data, inbox.pos
    if len(data) - start < RUN_BYTES_MIN or not data.startswith(PUT, start):
        return None
    prefix_end = data.find(b" ", data.find(b" ", start + len(PUT)) + 1) + 1
    length_end = data.find(b" ", prefix_end)
    if not 0 < prefix_end < length_end <= start + line_bytes_max:
        return None
    known = usual_put_head(data[start:length_end] + b" 0")
    if known is None or known[1] < 0 or (known[2] + prefix_end - start) * RUN_PUTS_MIN > len(data) - start:
        return None
    framed = framer(data, start, prefix_end - start, count_max, line_bytes_max, body_bytes_max)
    if framed is None:
        return None
    inbox.pos = start + framed.size
    return FramedPuts(known[0], known[1], framed.block, framed.opaques, framed.messages)
