"""A run of puts in the form that clients send, decoded as columns, without an object for each message.

Clients send the line ``put TOPIC PARTITION LENGTH FLAG CHECKSUM OPAQUE``. A minimal loop splits runs of it; the numbers
are parsed together afterwards. Any other line ends a run, and is parsed by ``metaq.protocols.text.lines``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metaq.model import INT32_MAX, INT32_MIN
from metaq.protocols.text.commands import Put
from metaq.protocols.text.lines import usual_put_head
from metaq.protocols.text.receive_buffer import CRLF, Inbox

_COMMA = b","
PUT = b"put "
"""Start of every put."""


class PutRun(NamedTuple):
    """Plain puts, none in a transaction, as columns of equal length (at least one); fields as in ``Put``."""

    topics: Sequence[str]
    partitions: Sequence[int]
    flags: Sequence[int]
    checksums: Sequence[int | None]
    bodies: Sequence[bytes]
    opaques: Sequence[int]

    @classmethod
    def of(cls, puts: Sequence[Put]) -> PutRun:
        topics, partitions, bodies, flags, opaques, checksums, _ = zip(*puts, strict=True)
        return cls(topics, partitions, flags, checksums, bodies, opaques)

    def behind(self, puts: Sequence[Put]) -> PutRun:
        """Return a run of ``puts`` and then these."""
        if not puts:
            return self
        first = PutRun.of(puts)
        return PutRun(
            (*first.topics, *self.topics),
            (*first.partitions, *self.partitions),
            (*first.flags, *self.flags),
            (*first.checksums, *self.checksums),
            (*first.bodies, *self.bodies),
            (*first.opaques, *self.opaques),
        )

    def picked(self, positions: Sequence[int]) -> PutRun:
        """Return the puts at ``positions``."""
        return PutRun(
            [self.topics[position] for position in positions],
            [self.partitions[position] for position in positions],
            [self.flags[position] for position in positions],
            [self.checksums[position] for position in positions],
            [self.bodies[position] for position in positions],
            [self.opaques[position] for position in positions],
        )


def take_run(inbox: Inbox, count_max: int, line_bytes_max: int, body_bytes_max: int) -> PutRun | int:
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
        return PutRun((topic,) * count, (partition,) * count, (flag,) * count, read[0], bodies, read[1])
    topics, partitions, _, flags = zip(*fields, strict=True)
    return PutRun(topics, partitions, flags, read[0], bodies, read[1])


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
