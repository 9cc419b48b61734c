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
from typing import Final

from metaq.model import Address

PAIR, EPOCH, SLAVE = "pair", "pair_epoch", "slave"
"""Words of lines in ``stats``."""

_FIELD: Final = ";pair="


def pair_lines(other: Address, epoch: int) -> Iterator[str]:
    """Yield the lines of ``stats`` that only a member of a pair has."""
    yield f"{PAIR} {other}"
    yield f"{EPOCH} {epoch}"


def with_pair(version_text: str, other: Address) -> str:
    """Return the text of a ``version`` reply of a member whose other one is at ``other``."""
    return f"{version_text}{_FIELD}{other}"


def pair_of(version_text: str) -> Address | None:
    """Return the address of the other member in a ``version`` reply; ``None`` if there is none."""
    try:
        return Address.parse(version_text.partition(_FIELD)[2].partition(";")[0])
    except ValueError:
        return None
