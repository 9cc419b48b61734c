"""Block G: brokers, and what names them."""

from __future__ import annotations

from typing import Final

from metaq_spark.diagnosis.rules.row import DOCTOR, B, Rule, RuleMatch, names
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict

_ROUTE: Final = ("route", "registration")
_BLIND: Final = frozenset({QueryVerdict.UNKNOWN, QueryVerdict.WAITING})


def _unreachable(situation: Situation) -> RuleMatch | None:
    """G5"""
    brokers = situation.evidence.brokers
    if brokers is None:
        return None
    said = [f"{one.what}: {one.detail}" for one in brokers.faults if one.fails and not _is_disk_or_route(one.what)]
    said = said or list(situation.away.values()) or ([brokers.error] if brokers.error else [])
    if not said:
        return None
    age_s = situation.age_s(brokers.last.at_ms if brokers.last is not None else situation.now_ms)
    return RuleMatch(
        f"{names(said, 2)}.", (Number("faults", len(said), "", age_s),), {"server": said[0].partition(":")[0]}
    )


def _is_disk_or_route(what: str) -> bool:
    return what.endswith("disk") or what.startswith("route")


def _stale_route(situation: Situation) -> RuleMatch | None:
    """G6"""
    brokers = situation.evidence.brokers
    found = (
        []
        if brokers is None
        else [one for one in brokers.faults if one.what.split()[0] in _ROUTE or one.what.endswith("registration")]
    )
    if not found or brokers is None:
        return None
    age_s = situation.age_s(brokers.last.at_ms if brokers.last is not None else situation.now_ms)
    return RuleMatch(f"{found[0].what}: {found[0].detail}.", (Number("such routes", len(found), "", age_s),))


RULES: Final = (
    Rule(
        "G5",
        "a server does not answer, or refuses",
        (B,),
        "Check the address and that the server runs. A code 16 of RocketMQ: the account needs SUB and GET on the "
        "topic, "
        "and SUB on the group.",
        DOCTOR,
        _unreachable,
        _BLIND,
    ),
    Rule(
        "G6",
        "a route leads to a broker that does not answer",
        (B,),
        "A name server forgets a broker two minutes after it went away. Until then the query keeps its position "
        "there and "
        "asks again; start the broker, or wait.",
        DOCTOR,
        _stale_route,
        _BLIND,
    ),
)
