"""What each broker says of its replication: its role, its epoch, whether its follower is in sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from metaq_console.pages.visit import Visit

_FIRST: Final = ("broker", "role", "trouble")
"""Lines that the head of a broker shows."""
_IN_SYNC: Final = "in_sync"
"""Line with the addresses of a pair's members in sync."""
PAIR: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCard:
    """One broker. ``state``: ``in sync``, ``out of sync`` or blank."""

    name: str
    role: str
    state: str
    trouble: str
    facts: tuple[tuple[str, str], ...]


async def replication(visit: Visit) -> Response:
    """Show the replication of each broker."""
    found = await visit.ask("replication", visit.console.cluster.replication(), None)
    brokers = None if found is None else [_card(lines) for lines in found]
    return visit.page("replication.html", "replication", is_live=True, brokers=brokers)


def _card(lines: Mapping[str, str]) -> ReplicaCard:
    return ReplicaCard(
        name=lines.get("broker", ""),
        role=lines.get("role", ""),
        state=_state(lines),
        trouble=lines.get("trouble", ""),
        facts=tuple((name, value) for name, value in lines.items() if name not in _FIRST),
    )


def _state(lines: Mapping[str, str]) -> str:
    if (members := lines.get(_IN_SYNC)) is not None:  # of a pair
        return "in sync" if len(members.split(",")) == PAIR else "out of sync"
    text = " ".join(f"{name} {value}" for name, value in lines.items()).lower().replace("_", " ")
    return "out of sync" if "out of sync" in text else "in sync" if "in sync" in text else ""
