"""What a member of a pair that elects its master says about the pair: in ``stats``, in ``version``, in its refusals.

::

    stats            slave false            whether this member is the master: then it says false
                     pair 10.0.0.2:8123     the address of the other member
                     pair_epoch 7           the highest epoch that this member knows
    version          ...;pair=10.0.0.2:8123
    403              NotMaster: ...         to every request of a client, from a member that is not the master

Source: docs/protocol.md, docs/replication.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from metaq.model import Address
from metaq.protocols.text.commands import Reply, Result
from metaq.statuses import FORBIDDEN

NOT_MASTER: Final = "NotMaster: "
"""The beginning of the text of a 403 from a member that is not the master."""

_PAIR, _EPOCH, _SLAVE = "pair", "pair_epoch", "slave"
_FIELD: Final = ";pair="


@dataclass(frozen=True, slots=True)
class PairFacts:
    """``other``: the address of the other member. ``epoch``: the highest that this member knows."""

    other: Address
    is_master: bool
    epoch: int


def pair_lines(other: Address, epoch: int) -> Iterator[str]:
    """Yield the lines of ``stats`` that only a member of a pair has."""
    yield f"{_PAIR} {other}"
    yield f"{_EPOCH} {epoch}"


def parse_pair(text: str) -> PairFacts | None:
    """Return what an answer to ``stats`` says about a pair; ``None`` if the broker is not a member of one."""
    fields = dict(line.partition(" ")[::2] for line in text.split("\r\n"))
    try:
        other, epoch = Address.parse(fields[_PAIR]), int(fields[_EPOCH])
    except (KeyError, ValueError):
        return None
    return PairFacts(other, fields.get(_SLAVE) == "false", epoch)


def with_pair(version_text: str, other: Address) -> str:
    """Return the text of a ``version`` reply of a member whose other one is at ``other``."""
    return f"{version_text}{_FIELD}{other}"


def pair_of(version_text: str) -> Address | None:
    """Return the address of the other member in a ``version`` reply; ``None`` if there is none."""
    try:
        return Address.parse(version_text.partition(_FIELD)[2].partition(";")[0])
    except ValueError:
        return None


def refuses_as_no_master(reply: Reply) -> bool:
    """Return whether a reply is the refusal of a member that is not the master of its pair."""
    return isinstance(reply, Result) and reply.code == FORBIDDEN and reply.text.startswith(NOT_MASTER)
