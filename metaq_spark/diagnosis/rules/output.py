"""Block D: rows go in, and nothing comes out."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from metaq_spark.diagnosis.evidence import Trigger
from metaq_spark.diagnosis.rules.row import CONSUME, LAST, P, Rule, RuleMatch, amount, clock, seconds
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict

STANDING: Final = 5
"""Triggers with rows and the same watermark that are needed to say that it stands."""
FUTURE_S: Final = 3600.0
"""An event so far in the future is not explained by a clock that is a little fast."""
_EPOCH_MS: Final = 0

_FLOWS: Final = frozenset(
    {
        QueryVerdict.IDLE,
        QueryVerdict.WORKING,
        QueryVerdict.CATCHING_UP,
        QueryVerdict.FALLING_BEHIND,
        QueryVerdict.WAITING,
    }
)


def _rowed(situation: Situation) -> Sequence[Trigger]:
    return [one for one in situation.work if one.rows and one.watermark_ms is not None]


def _standing(situation: Situation) -> RuleMatch | None:
    """D1"""
    triggers = _rowed(situation)[-STANDING:]
    if len(triggers) < STANDING or len({one.watermark_ms for one in triggers}) > 1 or not _holds(triggers[-1]):
        return None
    last = triggers[-1]
    assert last.watermark_ms is not None  # chosen so
    newest = max((one.event_time_max_ms or 0 for one in triggers), default=0)
    at = "has not begun" if last.watermark_ms == _EPOCH_MS else f"stands at {_moment(last.watermark_ms)}"
    seen = f"; the newest event in it is of {_moment(newest)}" if newest else ""
    return RuleMatch(
        f"The watermark {at}, in {len(triggers)} batches with rows{seen}.",
        (
            Number("watermark", _moment(last.watermark_ms), "", situation.age_s(last.ended_ms)),
            Number("batches", len(triggers), "", situation.age_s(last.ended_ms)),
        ),
    )


def _holds(trigger: Trigger) -> bool:
    """Whether an operator keeps rows back until the watermark passes."""
    return bool(trigger.states)


def _slow_source(situation: Situation) -> RuleMatch | None:
    """D2"""
    triggers = situation.work[-STANDING:]
    if len(triggers) < STANDING or len(triggers[-1].sources) < 2:
        return None
    if len({one.watermark_ms for one in triggers}) > 1 or triggers[-1].watermark_ms is None:
        return None
    rows = [
        sum(one.sources[place].rows for one in triggers if place < len(one.sources))
        for place in range(len(triggers[-1].sources))
    ]
    silent = [place + 1 for place, count in enumerate(rows) if not count]
    if not silent or not any(rows):
        return None
    age_s = situation.age_s(triggers[-1].ended_ms)
    return RuleMatch(
        f"Source {silent[0]} brings no rows, and the watermark is that of the slowest source: it stands at "
        f"{_moment(triggers[-1].watermark_ms)}.",
        (Number("silent source", silent[0], "", age_s), Number("rows of the others", sum(rows), "", age_s)),
        {"source": str(silent[0])},
    )


def _dropped(situation: Situation) -> RuleMatch | None:
    """D3"""
    triggers = situation.work
    dropped = sum(_sum(one.states, "numRowsDroppedByWatermark") for one in triggers)
    if not dropped or not _sum(
        triggers[-1].states + (triggers[-2].states if len(triggers) > 1 else ()), "numRowsDroppedByWatermark"
    ):
        return None
    rows = sum(one.rows for one in triggers)
    were, batches = "was" if dropped == 1 else "were", "batch" if len(triggers) == 1 else "batches"
    return RuleMatch(
        f"{amount(dropped, 'rows')} came later than the watermark allows and {were} dropped, in {len(triggers)} "
        f"{batches} with {amount(rows, 'rows')}.",
        (Number("dropped rows", dropped, "", situation.age_s(triggers[-1].ended_ms)),),
    )


def _sum(states: Sequence[Any], name: str) -> int:
    return sum(int(state.get(name) or 0) for state in states)


def _future(situation: Situation) -> RuleMatch | None:
    """D4"""
    found = [
        one
        for one in situation.work
        if one.event_time_max_ms is not None and one.event_time_max_ms > one.ended_ms + 1000 * FUTURE_S
    ]
    ahead = [one for one in situation.work if one.watermark_ms is not None and one.watermark_ms > one.ended_ms]
    if not found and not ahead:
        return None
    one = found[0] if found else ahead[0]
    event_ms = one.event_time_max_ms if found else one.watermark_ms
    assert event_ms is not None  # chosen so
    where = "; ".join(
        f"{place} from {source.start.offsets.get(place, 0)} to {end}"
        for source in one.sources
        if source.start is not None and source.end is not None
        for place, end in list(source.end.offsets.items())[:2]
        if end > source.start.offsets.get(place, 0)
    )
    topics = sorted({place.topic for source in one.sources if source.end is not None for place in source.end.offsets})
    inside = f" ({where})" if where else ""
    return RuleMatch(
        f"A row of batch {one.batch}{inside} has an event time of {_moment(event_ms)}, "
        f"{seconds((event_ms - one.ended_ms) / 1000)} in the future: the watermark follows it, and rows of today are "
        f"late.",
        (
            Number("event time", _moment(event_ms), "", situation.age_s(one.ended_ms)),
            Number("batch", one.batch, "", 0.0),
        ),
        {"batch": str(one.batch), "topic": topics[0] if topics else "TOPIC"},
    )


def _silent_sink(situation: Situation) -> RuleMatch | None:
    """D7"""
    last = situation.work[-1] if situation.work else None
    if last is None or last.rows_out != -1 or "foreachbatch" not in last.sink.lower() or last.rows:
        return None
    return RuleMatch(
        f"The function of foreachBatch has read no rows of batch {last.batch}: it returned without an action on them, "
        "or all of them were filtered.",
        (Number("rows", last.rows, "", situation.age_s(last.ended_ms)),),
    )


def _moment(ms: int | None) -> str:
    if ms is None:
        return "?"
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


RULES: Final = (
    Rule(
        "D4",
        "a row comes from the future",
        (P,),
        "Find the row in batch {batch}, and correct the clock of its producer; filter such rows before "
        "withWatermark. The "
        "watermark does not go back: the query needs a new checkpoint.",
        CONSUME,
        _future,
        _FLOWS,
    ),
    Rule(
        "D2",
        "a source without rows holds the watermark",
        (P,),
        "Source {source} must send now and then; or, if its late rows may be lost, set "
        "spark.sql.streaming.multipleWatermarkPolicy=max.",
        LAST,
        _slow_source,
        _FLOWS,
    ),
    Rule(
        "D3",
        "late rows are dropped",
        (P,),
        "Give withWatermark a longer delay, or look at the clocks of the producers.",
        LAST,
        _dropped,
        _FLOWS,
    ),
    Rule(
        "D1",
        "the watermark stands",
        (P,),
        "Nothing comes out before the watermark passes. Are all events old, is the column the right one, and its unit?",
        LAST,
        _standing,
        _FLOWS,
    ),
    Rule(
        "D7",
        "foreachBatch reads nothing",
        (P,),
        "Look at the function: rows are read only by an action such as write.save() or count().",
        LAST,
        _silent_sink,
        _FLOWS,
    ),
)

__all__ = ["RULES", "clock"]
