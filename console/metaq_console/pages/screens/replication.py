"""What each broker says of its replication: its role, its epoch, whether its follower is in sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from metaq_console.pages.visit import Visit

_FIRST: Final = ("broker", "role", "trouble")
"""Lines that the head of a broker shows."""


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
    text = " ".join(f"{name} {value}" for name, value in lines.items()).lower().replace("_", " ")
    state = "out of sync" if "out of sync" in text else "in sync" if "in sync" in text else ""
    return ReplicaCard(
        name=lines.get("broker", ""),
        role=lines.get("role", ""),
        state=state,
        trouble=lines.get("trouble", ""),
        facts=tuple((name, value) for name, value in lines.items() if name not in _FIRST),
    )
