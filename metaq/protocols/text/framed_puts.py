"""A run of puts, decoded directly into frames to store, by a broker with compiled code.

The caller supplies the compiled code (``Framer``). Puts that it does not accept are decoded by
``metaq.protocols.text.put_runs`` and ``metaq.protocols.text.lines``.
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
"""Fewest bytes and puts for which a run pays off."""


class Opaques(Protocol):
    """The opaques of a run, in order."""

    def tolist(self) -> list[int]: ...


class FramedPuts(NamedTuple):
    """Plain puts to one partition, none in a transaction, as ``block``: their frames, back to back, with ids of 0.

    Each frame has the checksum of its put, right or wrong. The block belongs to the framer and is valid until the next
    run.
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
    """The result of a framer: ``size`` bytes of input became ``block``."""

    size: int
    block: Buffer
    opaques: Opaques
    messages: int


class Framer(Protocol):
    """Converts the puts at ``data[start:]``, all of which begin with the first ``prefix_bytes`` there, into frames.

    At most ``count_max``, with lines and bodies within the limits, and only whole puts of the usual form. ``None``:
    none of them, or not now.
    """

    def __call__(
        self, data: bytes, start: int, prefix_bytes: int, count_max: int, line_bytes_max: int, body_bytes_max: int
    ) -> Framed | None: ...


def take_framed(
    inbox: Inbox, framer: Framer, count_max: int, line_bytes_max: int, body_bytes_max: int
) -> FramedPuts | None:
    """Take the next whole puts of the usual form to one partition, up to ``count_max``, if they are many."""
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
