"""Findings about pairs that elect their master: who leads, and whether one more fault stops the pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from metaq.backends.metaq.pair_members import parse_pair
from metaq.client.checkup.findings import Finding, fail, ok, warn
from metaq.discovery.stats import parse_broker, parse_figures
from metaq.model import Address

STOPS: Final = "one fault away from stopping"


class PairReports:
    """What the members that answered have said."""

    def __init__(self) -> None:
        self._said: dict[int, dict[Address, Mapping[str, str]]] = {}

    def add(self, address: Address, broker: str, replication: str) -> bool:
        """Take the answers to ``stats`` and ``stats replication``; return whether the broker is a member of a pair."""
        if parse_pair(broker) is None:
            return False
        self._said.setdefault(parse_broker(broker).broker_id, {})[address] = parse_figures(replication)
        return True

    def findings(self) -> Iterator[Finding]:
        """Yield one finding for each pair."""
        for broker_id, members in sorted(self._said.items()):
            yield _finding(f"pair of broker {broker_id}", members.values())


def _finding(what: str, members: Iterable[Mapping[str, str]]) -> Finding:
    said = list(members)
    masters = [each for each in said if each.get("role") == "master"]
    if not masters:
        reasons = sorted({each["trouble"] for each in said if "trouble" in each})
        return fail(what, "; ".join(("it has no master, so nothing is taken", *reasons)))
    master = max(masters, key=lambda each: int(each.get("epoch", "0")))
    in_sync = master.get("in_sync", "-").split(",")
    state = f"epoch {master.get('epoch')}, master {master.get('master')}, in sync {' and '.join(in_sync)}"
    if len(in_sync) < 2:
        away = f"{state}; only one member has everything"
        reason = f": {master['trouble']}" if "trouble" in master else ""
        stopped = master.get("min_in_sync") == "2"
        return (
            fail(what, f"{away}, and minInSync is 2, so nothing is taken{reason}")
            if stopped
            else warn(what, f"{STOPS}: {away}{reason}")
        )
    if "trouble" in master:
        return warn(what, f"{STOPS}: {state}; {master['trouble']}")
    return ok(what, state)
