"""Block E: the state grows."""

from __future__ import annotations

import itertools
from typing import Final

from metaq_spark.diagnosis.rules.row import EXPLAIN, LAST, C, P, Rule, RuleMatch, U, amount
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict

GROWING: Final = 5
"""Triggers in a row in which the state must have grown."""
MEMORY_SHARE: Final = 0.5
_ANY: Final = frozenset(
    set(QueryVerdict)
    - {QueryVerdict.FAILED, QueryVerdict.GONE, QueryVerdict.UNKNOWN, QueryVerdict.NOT_OURS, QueryVerdict.STUCK}
)


def _grows(situation: Situation) -> RuleMatch | None:
    """E1"""
    triggers = [one for one in situation.work if one.states][-GROWING:]
    if len(triggers) < GROWING:
        return None
    for place, last in enumerate(triggers[-1].states):
        states = [one.states[place] for one in triggers if place < len(one.states)]
        totals = [int(state.get("numRowsTotal") or 0) for state in states]
        removed = sum(int(state.get("numRowsRemoved") or 0) for state in states)
        if len(totals) == GROWING and removed == 0 and all(b > a for a, b in itertools.pairwise(totals)):
            age_s, name = situation.age_s(triggers[-1].ended_ms), last.get("operatorName", "state")
            return RuleMatch(
                f"The state of {name} has grown in each of the last {GROWING} batches, from {totals[0]:,} to "
                f"{totals[-1]:,} rows, and forgot none ({amount(int(last.get('memoryUsedBytes') or 0), 'bytes')}).",
                (Number("rows of state", totals[-1], "", age_s), Number("removed", 0, "", age_s)),
                {"operator": str(name)},
            )
    return None


def _fills_memory(situation: Situation) -> RuleMatch | None:
    """E2"""
    ui, last = situation.evidence.ui, situation.work[-1] if situation.work else None
    if ui is None or last is None or not ui.memory_bytes:
        return None
    in_memory = [
        state for state in last.states if not any("rocksdb" in key.lower() for key in state.get("customMetrics") or {})
    ]
    used = sum(int(state.get("memoryUsedBytes") or 0) for state in in_memory)
    if used < MEMORY_SHARE * ui.memory_bytes * max(1, ui.executors):
        return None
    age_s = situation.age_s(last.ended_ms)
    return RuleMatch(
        f"The state has {amount(used, 'bytes')} in the memory of executors that have "
        f"{amount(ui.memory_bytes, 'bytes')} each.",
        (Number("state", used, "bytes", age_s), Number("memory of an executor", ui.memory_bytes, "bytes", age_s)),
    )


def _fixed_partitions(situation: Situation) -> RuleMatch | None:
    """E5"""
    ui, folder = situation.evidence.ui, situation.folder
    wanted = None if ui is None else ui.conf.get("spark.sql.shuffle.partitions")
    if folder is None or wanted is None or not folder.state_partitions:
        return None
    there = max(folder.state_partitions.values())
    if not wanted.isdecimal() or int(wanted) == there:
        return None
    return RuleMatch(
        f"The state has {there} partitions since the first run; spark.sql.shuffle.partitions={wanted} has no effect "
        f"on it.",
        (Number("partitions of the state", there, "", 0.0), Number("setting", int(wanted), "", 0.0)),
    )


RULES: Final = (
    Rule(
        "E1",
        "the state grows and forgets nothing",
        (P,),
        "Give {operator} a way to forget: a watermark, and a time in the key (window) or in dropDuplicates.",
        EXPLAIN,
        _grows,
        _ANY,
    ),
    Rule(
        "E2",
        "the state fills the memory",
        (P, U),
        "Use the RocksDB state store: spark.sql.streaming.stateStore.providerClass.",
        LAST,
        _fills_memory,
    ),
    Rule(
        "E5",
        "the number of state partitions is fixed",
        (C, U),
        "To change it, start with a new checkpoint.",
        LAST,
        _fixed_partitions,
    ),
)
