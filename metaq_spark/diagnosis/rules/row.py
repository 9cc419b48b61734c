"""What a rule is: a row with an id, what it needs, and what it advises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from metaq_spark.diagnosis.evidence import EvidenceKind
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict

C, P, B, S, U = EvidenceKind.FOLDER, EvidenceKind.PROGRESS, EvidenceKind.BROKERS, EvidenceKind.STATUS, EvidenceKind.UI

SHOW: Final = "metaq-spark checkpoint show {folder} {reach}"
LAG: Final = "metaq --cluster {cluster} lag --checkpoint {folder}"
DOCTOR: Final = "metaq --cluster {cluster} doctor"
STATS: Final = "metaq --cluster {cluster} stats"
DESCRIBE: Final = "metaq --cluster {cluster} describe {topic}"
TOPICS: Final = "metaq --cluster {cluster} topics"
CONSUME: Final = "metaq --cluster {cluster} consume {topic} --from latest --follow --verbose"
WATCH: Final = "metaq-spark diagnose {folder} {reach} {progress} --watch"
FILES: Final = "ls -l {folder}/offsets {folder}/commits"
EXPLAIN: Final = "query.explain()  # in the driver"
LAST: Final = "query.lastProgress  # in the driver"


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """What a rule has found. ``words``: what the advice and the command name, beside the usual words."""

    sentence: str
    numbers: tuple[Number, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)


Find = Callable[[Situation], RuleMatch | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row. ``title``: what is the case if it applies. ``needs``: evidence without which it cannot be asked.

    ``find`` is ``None`` for rules that ``judgement`` decides itself, because they are the verdict. ``explains``: the
    verdicts of which it is the reason, if it applies; with any other it is a remark, if it ``is_remark``.
    """

    id: str
    title: str
    needs: Collection[EvidenceKind]
    advice: str
    command: str
    find: Find | None = None
    explains: frozenset[QueryVerdict] = frozenset()
    is_remark: bool = True


def seconds(value: float) -> str:
    """Return a duration for people: ``0.4 s``, ``12 s``, ``5 min``, ``3.5 h``, ``2 d``."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 48 * 3600 else f"{value / 86400:.0f} d"


def amount(value: float, unit: str) -> str:
    """Return a number of bytes or messages for people."""
    if unit != "bytes":
        return f"{value:,.0f} {unit if value != 1 else unit.removesuffix('s')}"
    for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:.0f} bytes"


def clock(ms: float) -> str:
    """Return the time of day, UTC."""
    import datetime

    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%H:%M:%S UTC")


def names(values: Collection[object], most: int = 3) -> str:
    """Return the first values, and how many more there are."""
    shown = list(values)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(str(value) for value in shown[:most]) + more
