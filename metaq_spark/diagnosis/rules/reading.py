"""Block A: is there anything to read?"""

from __future__ import annotations

from typing import Final

from metaq_spark.diagnosis.evidence import Trigger
from metaq_spark.diagnosis.rules.row import (
    CONSUME,
    DESCRIBE,
    DOCTOR,
    LAG,
    SHOW,
    B,
    C,
    P,
    Rule,
    RuleMatch,
    amount,
    clock,
    names,
    seconds,
)
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict
from metaq_spark.lag.unread import LagStatus, PartitionLag
from metaq_spark.offsets import unit_of

TRIGGERS_MIN: Final = 3
"""Triggers without a row after which a query counts as reading nothing."""


def idle(situation: Situation) -> RuleMatch:
    """A1: everything is read. When the last message came, and where."""
    lag, brokers = situation.lag, situation.evidence.brokers
    assert lag is not None  # judgement looked
    numbers = [Number("lag", 0, "offsets", lag.age_s), Number("partitions", lag.partitions, "", lag.age_s)]
    what = "its one partition to the end" if lag.partitions == 1 else f"all {lag.partitions} partitions to their end"
    sentence = f"The query has read {what}"
    topics = sorted({one.where.topic for one in situation.known_lags})
    put = dict(brokers.last_put_ms) if brokers is not None else {}
    if put:
        where, last_ms = max(put.items(), key=lambda one: one[1])
        numbers.append(Number("last message stored", round(situation.age_s(last_ms), 1), "s ago", lag.age_s))
        sentence += f"; the last message was stored {seconds(situation.age_s(last_ms))} ago, in {where}"
    elif lag.partitions and situation.look is not None:
        sentence += "; they hold no message" if not any(_stored(one) for one in situation.known_lags) else ""
    return RuleMatch(
        f"{sentence}.", tuple(numbers), {"topic": topics[0] if topics else "TOPIC", "topics": names(topics)}
    )


def _stored(lag: PartitionLag) -> int:
    return 0 if lag.available is None else len(lag.available)


def _unknown_partitions(situation: Situation) -> RuleMatch | None:
    """A2"""
    new = situation.new_lags
    if not new or any(len(lag.unread) for lag in situation.known_lags):
        return None
    age_s = situation.age_s(situation.lag_ms or situation.now_ms)
    unread = sum(len(lag.unread) for lag in new)
    unit = unit_of(new[0].where)
    return RuleMatch(
        f"Messages wait in partitions that the query does not read: {names([lag.where for lag in new])} "
        f"({amount(unread, unit)}).",
        (Number("unread in new partitions", unread, unit, age_s), Number("new partitions", len(new), "", age_s)),
        {"topic": new[0].where.topic, "partitions": names([lag.where.partition for lag in new])},
    )


def _puts_refused(situation: Situation) -> RuleMatch | None:
    """A3"""
    brokers = situation.evidence.brokers
    faults = [] if brokers is None else [one for one in brokers.faults if one.what.endswith("disk") and one.fails]
    if not faults or brokers is None or brokers.last is None:
        return None
    age_s = situation.age_s(brokers.last.at_ms)
    return RuleMatch(
        f"A broker refuses messages: {faults[0].what}: {faults[0].detail}.",
        (Number("brokers that refuse messages", len(faults), "", age_s),),
        {"server": faults[0].what.removesuffix(" disk")},
    )


def _nothing_selected(situation: Situation) -> RuleMatch | None:
    """A4"""
    empty = _empty_triggers(situation)
    if len(empty) < TRIGGERS_MIN or "foreachbatch" in empty[-1].sink.lower():
        return None
    brokers = situation.evidence.brokers
    types = dict(brokers.types) if brokers is not None else {}
    seen = names([repr(one) if one else "none" for one in sorted(types, key=lambda one: -types[one])], 5)
    wanted = next(
        (situation.evidence.options[key] for key in situation.evidence.options if key.lower() in _FILTERS), None
    )
    sentence = f"The last {len(empty)} batches moved on in the topic and had no rows"
    sentence += f"; the newest messages have the types {seen}" if types else ""
    sentence += f", the query selects {wanted!r}" if wanted else ""
    age_s = situation.age_s(empty[-1].ended_ms)
    numbers = (Number("batches without rows", len(empty), "", age_s),)
    return RuleMatch(f"{sentence}.", numbers, {"types": seen or NOT_ASKED})


NOT_ASKED: Final = "which no broker was asked for"
"""Instead of the types of a topic's newest messages."""
_FILTERS: Final = frozenset({"messagetypes", "tags", "tag", "sql", "filter", "subexpression"})


def _empty_triggers(situation: Situation) -> list[Trigger]:
    """The last triggers in a row that moved in a source of ours and had no row."""
    found: list[Trigger] = []
    for trigger in reversed(situation.work):
        if trigger.rows or not any(source.moved for source in trigger.sources):
            break
        found.append(trigger)
    return found[::-1]


def _removed(situation: Situation) -> RuleMatch | None:
    """A5"""
    gone = [lag for lag in situation.suspects if lag.status_note is LagStatus.REMOVED]
    if not gone or situation.look is None:
        return None
    lost = sum(lag.available.start - lag.read_to for lag in gone if lag.available is not None)
    unit, age_s = unit_of(gone[0].where), situation.age_s(situation.look.at_ms)
    first = gone[0]
    assert first.available is not None  # a removed partition has a range
    return RuleMatch(
        f"The broker has removed {amount(lost, unit)} that the query has not read, in "
        f"{names([g.where for g in gone])}: "
        f"the query is at {first.read_to}, the first message that is left at {first.available.start}.",
        (Number("removed unread", lost, unit, age_s), Number("partitions", len(gone), "", age_s)),
        {"topic": first.where.topic},
    )


def _other_log(situation: Situation) -> RuleMatch | None:
    """A6"""
    found = [lag for lag in situation.suspects if lag.status_note is not LagStatus.REMOVED]
    if not found or situation.look is None:
        return None
    age_s, lag = situation.age_s(situation.look.at_ms), found[0]
    match lag.status_note:
        case LagStatus.RECREATED:
            what = f"{lag.where} was deleted and created again since the query read it"
        case LagStatus.AHEAD:
            end = lag.available.end if lag.available is not None else "?"
            what = f"{lag.where} ends at {end}, before offset {lag.read_to} that the query has read already"
        case _:
            what = f"No broker has {lag.where} any more"
    more = f"; the same or the like holds for {len(found) - 1} more partitions" if len(found) > 1 else ""
    numbers = (Number("position", lag.read_to, "", age_s), Number("such partitions", len(found), "", age_s))
    return RuleMatch(f"{what}{more}.", numbers, {"topic": lag.where.topic})


RULES: Final = (
    Rule(
        "A1",
        "everything is read",
        (C, B),
        "If you expected messages, look at the producer: is it running, and does it send to {topics} on these servers?",
        DESCRIBE,
    ),
    Rule(
        "A2",
        "messages come only to partitions that the query does not know",
        (C, B),
        "Add {partitions} to the option assign, or use subscribe, which finds new partitions by itself; with a "
        "pattern, "
        "check that it matches the whole name.",
        SHOW,
        _unknown_partitions,
        frozenset({QueryVerdict.IDLE}),
    ),
    Rule(
        "A3",
        "a broker refuses messages",
        (B,),
        "Producers get errors: make space on the disk of {server}; puts are taken again by themselves.",
        DOCTOR,
        _puts_refused,
        frozenset({QueryVerdict.IDLE}),
    ),
    Rule(
        "A4",
        "messages come, and the query selects none of them",
        (P,),
        "Compare the query's filter (messageTypes, tags, sql) with the types of the messages, {types}; letters count.",
        CONSUME,
        _nothing_selected,
        frozenset({QueryVerdict.IDLE, QueryVerdict.WORKING, QueryVerdict.CATCHING_UP, QueryVerdict.FALLING_BEHIND}),
    ),
    Rule(
        "A5",
        "retention has passed the query",
        (C, B),
        "These messages are lost for the query. With failOnDataLoss=true it fails: start it with "
        "failOnDataLoss=false to go on at the first message that is left, and keep messages for longer than the query "
        "may be stopped.",
        LAG,
        _removed,
        frozenset({QueryVerdict.STUCK, QueryVerdict.FAILED, QueryVerdict.GONE, QueryVerdict.UNKNOWN}),
    ),
    Rule(
        "A6",
        "the partition is not the one that was read",
        (C, B),
        "Was the topic deleted, was a broker restored from an old copy, or are these servers of another cluster? Put "
        "that "
        "right; or move the query with metaq-spark checkpoint move, or start it with failOnDataLoss=false.",
        LAG,
        _other_log,
        frozenset({QueryVerdict.STUCK, QueryVerdict.FAILED, QueryVerdict.GONE, QueryVerdict.UNKNOWN}),
    ),
)

__all__ = ["RULES", "clock", "idle"]
