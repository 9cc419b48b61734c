"""Block C: a batch runs, but slowly: where does the time go?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from metaq_spark.diagnosis.evidence import Trigger
from metaq_spark.diagnosis.rates import ReadRates
from metaq_spark.diagnosis.rules.batches import lag_numbers
from metaq_spark.diagnosis.rules.row import (
    DOCTOR,
    EXPLAIN,
    LAST,
    WATCH,
    B,
    C,
    Find,
    P,
    Rule,
    RuleMatch,
    amount,
    seconds,
)
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict

TRIGGERS_MIN: Final = 3
TRIGGERS_LOOKED_AT: Final = 20
LATEST_SHARE: Final = 0.2
CHECKPOINT_SHARE: Final = 0.3
PLANNING_SHARE: Final = 0.2
BATCH_SHARE: Final = 0.6
STATE_SHARE: Final = 0.3
FIXED_SHARE: Final = 0.8
"""If this part of a batch's time does not depend on its rows, batches are too small."""
ROWS_SPREAD: Final = 2.0
"""Sizes of batches must differ by this factor to tell the fixed cost from the cost per row."""
ROWS_PER_TASK: Final = 1000
TASKS_MIN: Final = 16
SAME_SIZE: Final = 0.02
"""Sizes of batches that differ by less are one limit."""
TRIGGERS_OF_LIMIT: Final = 4
BUSY_SHARE: Final = 0.7
"""A query whose batches fill less of the time waits for its trigger."""

_BEHIND: Final = frozenset({QueryVerdict.FALLING_BEHIND, QueryVerdict.CATCHING_UP})


def _last(situation: Situation) -> Sequence[Trigger]:
    return [one for one in situation.work if one.took_ms > 0][-TRIGGERS_LOOKED_AT:]


def _share(triggers: Sequence[Trigger], *phases: str) -> float:
    """The part of the triggers' time that some phases took."""
    total = sum(one.took_ms for one in triggers)
    return sum(one.phases_ms.get(phase, 0) for one in triggers for phase in phases) / total if total else 0.0


def _in_phases(least: float, what: str, *phases: str) -> Find:
    """Return a rule's function: some phases take at least a part of the time."""

    def find(situation: Situation) -> RuleMatch | None:
        triggers = _last(situation)
        if len(triggers) < TRIGGERS_MIN or (share := _share(triggers, *phases)) < least:
            return None
        ms = median(sum(one.phases_ms.get(phase, 0) for phase in phases) for one in triggers)
        return _match(situation, triggers, f"{share:.0%} of a batch's time is {what} ({ms:.0f} ms each)", what, share)

    return find


def _match(situation: Situation, triggers: Sequence[Trigger], sentence: str, name: str, share: float) -> RuleMatch:
    age_s = situation.age_s(triggers[-1].ended_ms)
    return RuleMatch(f"{sentence}.", (Number(name, round(share, 3), "of the time", age_s),), {"phase": name})


def _has_pauses(situation: Situation) -> bool:
    """Whether the query waits between its batches, so that they need not be faster."""
    return situation.usual_s is not None and situation.usual_s <= BUSY_SHARE * situation.pace_s


def _is_batch(triggers: Sequence[Trigger]) -> bool:
    return len(triggers) >= TRIGGERS_MIN and _share(triggers, "addBatch") >= BATCH_SHARE


def state_share(triggers: Sequence[Trigger]) -> float:
    """The part of ``addBatch`` that the state took, if its tasks had run on all cores evenly."""
    batch_ms = sum(one.phases_ms.get("addBatch", 0) for one in triggers)
    state_ms = sum(
        (int(state.get("commitTimeMs") or 0) + int(state.get("allUpdatesTimeMs") or 0))
        / max(1, int(state.get("numShufflePartitions") or 1))
        for one in triggers
        for state in one.states
    )
    return state_ms / batch_ms if batch_ms else 0.0


def _sink(situation: Situation) -> RuleMatch | None:
    """C4"""
    triggers = _last(situation)
    if not _is_batch(triggers) or state_share(triggers) >= STATE_SHARE or _too_many_tasks(triggers) is not None:
        return None
    if _has_pauses(situation):
        return None
    ms = median(one.phases_ms.get("addBatch", 0) for one in triggers)
    rows = median(one.rows for one in triggers)
    look = situation.look
    fast = "" if look is None or situation.away else f"; the brokers answer in {look.took_s * 1000:.0f} ms"
    sentence = f"{_share(triggers, 'addBatch'):.0%} of a batch's time is reading, computing and writing its rows"
    sentence += f" ({seconds(ms / 1000)} for {rows:.0f} rows){fast}"
    return _match(situation, triggers, sentence, "addBatch", _share(triggers, "addBatch"))


def _state(situation: Situation) -> RuleMatch | None:
    """C5"""
    triggers = _last(situation)
    if not _is_batch(triggers) or not triggers[-1].states:
        return None
    share = state_share(triggers)
    if share < STATE_SHARE:
        return None
    rows = sum(int(state.get("numRowsTotal") or 0) for state in triggers[-1].states)
    memory = sum(int(state.get("memoryUsedBytes") or 0) for state in triggers[-1].states)
    sentence = f"{share:.0%} of the time of addBatch is updating and saving the state: {rows:,} rows, "
    sentence += f"{amount(memory, 'bytes')}"
    return _match(situation, triggers, sentence, "state", share)


def _too_many_tasks(triggers: Sequence[Trigger]) -> tuple[int, float] | None:
    """The number of tasks of the state, and the rows that each gets, if that is few."""
    if len(triggers) < TRIGGERS_MIN or not triggers[-1].states or _share(triggers, "addBatch") < BATCH_SHARE:
        return None
    tasks = max(int(state.get("numShufflePartitions") or 0) for state in triggers[-1].states)
    rows = median(one.rows for one in triggers) / max(1, tasks)
    return (tasks, rows) if tasks >= TASKS_MIN and rows < ROWS_PER_TASK else None


def _small_tasks(situation: Situation) -> RuleMatch | None:
    """C6"""
    triggers = _last(situation)
    found = _too_many_tasks(triggers)
    if found is None:
        return None
    tasks, rows = found
    age_s = situation.age_s(triggers[-1].ended_ms)
    return RuleMatch(
        f"A batch has {tasks} shuffle partitions, each with {rows:.0f} rows.",
        (Number("shuffle partitions", tasks, "", age_s), Number("rows each", round(rows, 1), "", age_s)),
        {"tasks": str(tasks)},
    )


def _fixed_cost(situation: Situation) -> RuleMatch | None:
    """C7"""
    triggers = [one for one in _last(situation) if one.rows > 0]
    if len(triggers) < 2 * TRIGGERS_MIN:
        return None
    rows, times = [one.rows for one in triggers], [one.took_ms for one in triggers]
    if max(rows) < ROWS_SPREAD * min(rows):
        return None
    mean_rows, mean_ms = sum(rows) / len(rows), sum(times) / len(times)
    spread = sum((one - mean_rows) ** 2 for one in rows)
    per_row = sum((r - mean_rows) * (t - mean_ms) for r, t in zip(rows, times, strict=True)) / spread
    fixed_ms = min(mean_ms, mean_ms - per_row * mean_rows)
    if fixed_ms < FIXED_SHARE * mean_ms:
        return None
    age_s = situation.age_s(triggers[-1].ended_ms)
    return RuleMatch(
        f"A batch takes about {mean_ms:.0f} ms whether it has {min(rows)} rows or {max(rows)}: "
        f"{fixed_ms / mean_ms:.0%} of it is a fixed cost.",
        (
            Number("fixed cost", round(fixed_ms), "ms", age_s),
            Number("per row", round(max(0.0, per_row), 3), "ms", age_s),
        ),
    )


def _limit(situation: Situation) -> RuleMatch | None:
    """C9"""
    triggers = list(situation.work)[-TRIGGERS_LOOKED_AT:]
    sizes = [
        sum(
            end - source.start.offsets[where]
            for source in one.sources
            if source.start is not None and source.end is not None
            for where, end in source.end.offsets.items()
            if where in source.start.offsets
        )
        for one in triggers
    ]
    sizes = [size for size in sizes if size > 0][-TRIGGERS_OF_LIMIT:]
    lag = situation.lag
    if len(sizes) < TRIGGERS_OF_LIMIT or lag is None or lag.offsets < 2 * sizes[-1]:
        return None
    if not _has_pauses(situation):
        return None  # the time of its batches limits it, not their size
    rows = [one.rows for one in triggers if one.rows][-TRIGGERS_OF_LIMIT:]
    same = [values for values in (sizes, rows) if values and max(values) - min(values) <= SAME_SIZE * max(values)]
    if not same:
        return None
    took_s = situation.pace_s
    unit = "bytes" if same[0] is sizes else "rows"
    rate = amount(same[0][-1] / took_s, unit) + " a second" if took_s else "unknown"
    age_s = situation.age_s(triggers[-1].ended_ms)
    return RuleMatch(
        f"Each of the last {len(sizes)} batches had {amount(same[0][-1], unit)}: a limit, which allows {rate}.",
        (Number("size of a batch", same[0][-1], unit, age_s), Number("every", round(took_s, 2), "s", age_s)),
    )


def behind(situation: Situation) -> RuleMatch:
    """C10, C11, C12: lag, rates, and when the end is reached."""
    lag, speeds = situation.lag or situation.partial_lag, situation.rates
    numbers = list(lag_numbers(situation))
    parts = []
    if lag is not None:
        size = amount(lag.messages, "messages") if lag.messages is not None else amount(lag.offsets, _unit(speeds))
        age = f", {seconds(lag.seconds)}" if lag.seconds is not None else ""
        parts.append(f"{size} behind{age}")
    if speeds is not None and speeds.arrival_per_s is not None and speeds.service_per_s is not None:
        numbers += [
            Number("arrives", round(speeds.arrival_per_s, 2), f"{speeds.unit}/s", 0.0),
            Number("is read", round(speeds.service_per_s, 2), f"{speeds.unit}/s", 0.0),
            Number("window", round(speeds.window_s, 1), "s", 0.0),
        ]
        parts.append(
            f"in the last {seconds(speeds.window_s)}, {amount(speeds.arrival_per_s, speeds.unit)} arrived and "
            f"{amount(speeds.service_per_s, speeds.unit)} were read in a second"
        )
        if situation.eta_s is not None:
            parts.append(f"the end is reached in about {seconds(situation.eta_s)}")
            numbers.append(Number("time to go", round(situation.eta_s, 1), "s", 0.0))
    text = "; ".join(parts) or "Batches are committed"
    return RuleMatch(f"{text[0].upper()}{text[1:]}.", tuple(numbers))


def _unit(speeds: ReadRates | None) -> str:
    return "bytes" if speeds is None else speeds.unit


RULES: Final = (
    Rule(
        "C1",
        "looking for offsets takes long",
        (P,),
        "Read fewer topics in a query, or make ZooKeeper, name servers and brokers answer faster.",
        DOCTOR,
        _in_phases(LATEST_SHARE, "asking for offsets", "latestOffset"),
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C2",
        "writing the checkpoint takes long",
        (P,),
        "Put the checkpoint on a faster file system, or make batches larger: a longer trigger interval, or a higher "
        "maxBytesPerTrigger.",
        LAST,
        _in_phases(CHECKPOINT_SHARE, "writing the checkpoint", "walCommit", "commitOffsets", "commitBatch"),
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C3",
        "planning takes long",
        (P,),
        "The plan is large: use fewer unions and views, no schema inference, and a plan that does not grow.",
        EXPLAIN,
        _in_phases(PLANNING_SHARE, "planning", "queryPlanning"),
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C5",
        "the state takes long",
        (P,),
        "Use the RocksDB state store with changelog checkpointing, let the state forget (watermark), and do not have "
        "more state partitions than cores need.",
        LAST,
        _state,
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C6",
        "there are far more tasks than rows need",
        (P,),
        "Set spark.sql.shuffle.partitions to about the number of cores instead of {tasks}; a stateful query keeps the "
        "number of its checkpoint, so it needs a new one.",
        EXPLAIN,
        _small_tasks,
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C9",
        "a limit of the query holds it back",
        (P, C, B),
        "Raise maxBytesPerTrigger or maxOffsetsPerTrigger, or shorten the trigger's interval, if the machine has "
        "capacity left.",
        WATCH,
        _limit,
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C7",
        "batches are too small for what each costs",
        (P,),
        "Give the query a longer trigger interval or larger batches; in Spark, "
        "spark.python.unix.domain.socket.enabled=true makes Python workers cost less.",
        LAST,
        _fixed_cost,
        _BEHIND,
        is_remark=False,
    ),
    Rule(
        "C4",
        "transformation or sink take long",
        (P,),
        "Run the same read into format('noop'): if that is fast, the sink or a transformation (UDF, shuffle) is "
        "slow; else add cores or partitions.",
        EXPLAIN,
        _sink,
        frozenset({QueryVerdict.FALLING_BEHIND}),
        is_remark=False,
    ),
    Rule(
        "C10",
        "messages arrive faster than they are read",
        (C, B),
        "Give the query more cores, up to one a partition and more with minPartitions; or larger batches.",
        WATCH,
    ),
    Rule("C11", "messages are read faster than they arrive", (C, B), "Wait; nothing to do.", WATCH),
    Rule("C12", "the query keeps up", (C, B), "Nothing to do.", WATCH),
    Rule(
        "C13",
        "the lag stays the same",
        (C, B),
        "It reads as fast as messages arrive and does not catch up: give it more cores, or larger batches.",
        WATCH,
    ),
)
