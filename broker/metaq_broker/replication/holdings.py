"""What another broker says that it holds: one ``Holding`` for each of its partitions. Pure: text in, values out.

A broker of ours says it in ``stats segments``, a Java broker, with less, in ``stats offsets``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from metaq.discovery.stats import parse_offsets
from metaq.errors import ProtocolError
from metaq.protocols.text.extensions import EXT_SEGMENTS
from metaq_broker.replication.link import Link

PartitionKey = tuple[str, int]
"""Topic and index."""

_SEGMENTS_LINE: Final = re.compile(r"(\S+) (\d+) (-|[0-9a-f]{32}) (\d+) (\d+) (\d+)")


@dataclass(frozen=True, slots=True)
class Holding:
    """A partition elsewhere: byte offsets ``start`` and ``readable_end`` of what can be read.

    ``incarnation`` and ``last_start``, where the last segment begins, are ``None`` where the broker does not tell.
    """

    start: int
    readable_end: int
    incarnation: str | None = None
    last_start: int | None = None


def parse_segments(text: str) -> dict[PartitionKey, Holding]:
    """Read the answer to ``stats segments``. A partition whose incarnation is not durable yet is left out.

    Raises:
        ProtocolError: A line is not of that form.
    """
    found: dict[PartitionKey, Holding] = {}
    lines = text.split("\r\n")
    if lines[0] != "STATS" or "END" not in lines:
        raise ProtocolError("the answer to stats segments is not STATS ... END", text.encode(errors="replace"))
    for line in lines[1 : lines.index("END")]:
        match = _SEGMENTS_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError("a line of stats segments that cannot be read", line.encode(errors="replace"))
        if match[3] != "-":
            numbers = int(match[4]), int(match[6])
            found[match[1], int(match[2])] = Holding(*numbers, match[3], int(match[5]))
    return found


async def holdings(link: Link) -> dict[PartitionKey, Holding]:
    """Ask a broker what it holds.

    Raises:
        LinkLost, RequestRefused, ProtocolError: It does not say.
    """
    if EXT_SEGMENTS in link.extensions:
        return parse_segments(await link.stats("segments"))
    offsets = parse_offsets(await link.stats("offsets"))
    return {partition_key: Holding(held.start, held.end) for partition_key, held in offsets.items()}
