"""Block B: is a batch running, and if not, what is waited for?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import median
from typing import Final

from metaq.model import TopicPartition
from metaq_spark.diagnosis.evidence import QueryRun
from metaq_spark.diagnosis.rules.row import (
    DOCTOR,
    FILES,
    LAST,
    SHOW,
    WATCH,
    B,
    C,
    P,
    Rule,
    RuleMatch,
    S,
    U,
    amount,
    clock,
    names,
    seconds,
)
from metaq_spark.diagnosis.situation import FIRST_S, Driver, Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict
from metaq_spark.offsets import unit_of

PLANNING_S_MIN: Final = 10.0
"""For how long a query looks for offsets before that is strange."""
PLANNING_SHARE: Final = 0.5
SKEW_SHARE: Final = 0.5
SKEW_TIMES: Final = 4.0
"""One partition has half of a batch, and four times as much as the others have on average."""
TASK_TIMES: Final = 5.0
TASK_S_MIN: Final = 10.0
SLOW_LOOK_S: Final = 1.0
"""A look at the brokers that takes longer than this is slow."""
DELAY_MS_USUAL: Final = 15 * 60_000
"""The default of maxTriggerDelay."""
FAILURES_MIN: Final = 2
TIMES_SAID: Final = 2.0
"""From how many times the usual size on a batch is said to be large."""

_PLANNING: Final = re.compile(r"offsets? from", re.IGNORECASE)
_CONCURRENT: Final = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming jobs detected", re.IGNORECASE)


def planning_s(situation: Situation) -> float | None:
    """For how long the driver has been asking for offsets; ``None`` if it does not."""
    status = situation.status
    return situation.age_s(status.since_ms) if status is not None and _PLANNING.search(status.message) else None


def batch_sizes(situation: Situation) -> dict[TopicPartition, int]:
    """Return what the planned batch holds of each partition, in offsets; empty for the first batch."""
    sizes: dict[TopicPartition, int] = {}
    for source in situation.ours:
        if source.planned is not None and source.read_to is not None and source.read_to.offsets:
            for where, end in source.planned.offsets.items():
                if (start := source.read_to.offsets.get(where)) is not None and end > start:
                    sizes[where] = end - start
    return sizes


def running(situation: Situation) -> RuleMatch:
    """B1, B2: how long the planned batch has been running, and what it holds."""
    planned, age_s = situation.folder.planned if situation.folder is not None else None, situation.running_s
    assert planned is not None  # judgement looked
    assert age_s is not None
    numbers = [Number("batch", planned.number, "", 0.0), Number("running for", round(age_s, 1), "s", 0.0)]
    sentence = f"Batch {planned.number} has been running for {seconds(age_s)}"
    if situation.usual_s is not None:
        numbers.append(Number("usual", round(situation.usual_s, 2), "s", 0.0))
        sentence += f"; usual are {seconds(situation.usual_s)}"
        if situation.size_times >= TIMES_SAID:
            sentence += f", and it holds {situation.size_times:,.0f} times as much as others"
    sizes = batch_sizes(situation)
    if sizes:
        unit = unit_of(next(iter(sizes)))
        most = max(sizes, key=lambda where: sizes[where])
        sentence += f". It holds {amount(sum(sizes.values()), unit)} of {len(sizes)} partitions"
        sentence += f", most of them in {most} ({amount(sizes[most], unit)})" if len(sizes) > 1 else ""
        numbers.append(Number("batch size", sum(sizes.values()), unit, 0.0))
    if situation.status is not None:
        sentence += f". The driver says: {situation.status.message}"
    return RuleMatch(
        f"{sentence}.", tuple(numbers), {"batch": str(planned.number), "usual": seconds(situation.usual_s or 0)}
    )


def next_trigger_ms(situation: Situation) -> float | None:
    """When the next trigger is due, if the interval is known."""
    began = situation.work[-1].began_ms if situation.work else None
    if began is None and situation.folder is not None and situation.folder.batches:
        began = situation.folder.batches[-1].planned_ms
    return None if began is None or situation.interval_s is None else began + 1000 * situation.interval_s


def waits_for_trigger(situation: Situation) -> RuleMatch:
    """B3"""
    numbers: list[Number] = []
    due_ms = next_trigger_ms(situation)
    if situation.one_run and situation.driver is not Driver.ALIVE and situation.folder and situation.folder.ran_move:
        sentence = (
            "The last run ended after the batch that moved the query (before Spark 4.2, a run with availableNow has "
            "one batch); what is unread waits"
        )
    elif situation.one_run and situation.driver is not Driver.ALIVE:
        sentence = "The last run read what was there when it began, and ended (availableNow); what came since waits"
    elif situation.interval_s is not None:
        sentence = f"The query makes a batch every {seconds(situation.interval_s)}"
        numbers.append(Number("interval", situation.interval_s, "s", 0.0))
        if due_ms is not None and due_ms > situation.now_ms:
            sentence += f"; the next one is due at {clock(due_ms)}"
    else:
        sentence = "The driver waits for its next trigger"
    return RuleMatch(f"{sentence}.", (*numbers, *lag_numbers(situation)))


def lag_numbers(situation: Situation) -> tuple[Number, ...]:
    """The lag as numbers."""
    lag = situation.lag or situation.partial_lag
    if lag is None:
        return ()
    found = []
    for name, value, unit in (
        ("lag", lag.bytes, "bytes"),
        ("lag", lag.messages, "messages"),
        ("time lag", None if lag.seconds is None else round(lag.seconds, 1), "s"),
    ):
        if value is not None:
            found.append(Number(name, value, unit, lag.age_s))
    return tuple(found)


def _slow_planning(situation: Situation) -> RuleMatch | None:
    """B4"""
    look_s = planning_s(situation)
    away = situation.away
    if look_s is not None and look_s >= PLANNING_S_MIN:
        sentence = f"The driver has been asking for offsets for {seconds(look_s)}"
        sentence += f"; {names(away)} does not answer: {next(iter(away.values()))}" if away else ""
        return RuleMatch(
            f"{sentence}.",
            (Number("asking for offsets", round(look_s, 1), "s", 0.0),),
            {"server": names(away) or "the servers"},
        )
    last = situation.work[-1] if situation.work else None
    if last is None or last.phases_ms.get("latestOffset", 0) < 1000 * PLANNING_S_MIN:
        return None
    took_s = last.phases_ms["latestOffset"] / 1000
    return RuleMatch(
        f"Asking for offsets took {seconds(took_s)} in batch {last.batch}.",
        (Number("latestOffset", took_s, "s", situation.age_s(last.ended_ms)),),
        {"server": names(away) or "the servers"},
    )


def _no_cores(situation: Situation) -> RuleMatch | None:
    """B5"""
    ui = situation.evidence.ui
    if ui is None or situation.running_s is None or not ui.waiting_tasks:
        return None
    if ui.executors > 1 and ui.cores == 0:
        return None
    age_s = situation.age_s(ui.read_ms)
    if ui.running_tasks and not (ui.other_jobs > 1 and ui.running_tasks >= ui.cores):
        return None
    what = "no core is free" if ui.cores else "there is no executor"
    return RuleMatch(
        f"{ui.waiting_tasks} tasks wait and {what}: {ui.running_tasks} tasks of {ui.other_jobs} jobs run on {ui.cores} "
        "cores.",
        (
            Number("waiting tasks", ui.waiting_tasks, "", age_s),
            Number("running tasks", ui.running_tasks, "", age_s),
            Number("cores", ui.cores, "", age_s),
        ),
    )


def _skew(situation: Situation) -> RuleMatch | None:
    """B6"""
    sizes = batch_sizes(situation)
    found = _largest(sizes)
    ui = situation.evidence.ui
    if found is not None:
        where, share = found
        return RuleMatch(
            f"{where} has {share:.0%} of the batch, which {len(sizes)} partitions share.",
            (Number("share of one partition", round(share, 3), "", 0.0),),
            {"partition": str(where), "topic": where.topic},
        )
    if ui is None or not ui.tasks_s or len(ui.done_tasks_s) < 2:
        return None
    usual, longest = median(ui.done_tasks_s), ui.tasks_s[-1]
    if longest < TASK_S_MIN or longest < TASK_TIMES * usual:
        return None
    return RuleMatch(
        f"One task has been running for {seconds(longest)}; the others of its stage took {seconds(usual)}.",
        (Number("longest task", round(longest, 1), "s", situation.age_s(ui.read_ms)),),
        {"partition": "the partition of this task"},
    )


def _largest(sizes: Mapping[TopicPartition, int]) -> tuple[TopicPartition, float] | None:
    if len(sizes) < 2:
        return None
    where = max(sizes, key=lambda one: sizes[one])
    total = sum(sizes.values())
    others = (total - sizes[where]) / (len(sizes) - 1)
    share = sizes[where] / total
    return (where, share) if share >= SKEW_SHARE and sizes[where] >= SKEW_TIMES * max(1.0, others) else None


def _slow_broker(situation: Situation) -> RuleMatch | None:
    """B7"""
    look = situation.look
    if situation.running_s is None or look is None:
        return None
    if situation.away:
        server, reason = next(iter(situation.away.items()))
        return RuleMatch(
            f"A broker that the batch reads from does not answer: {reason}.",
            (Number("servers away", len(situation.away), "", situation.age_s(look.at_ms)),),
            {"server": server},
        )
    if look.took_s < SLOW_LOOK_S:
        return None
    return RuleMatch(
        f"The brokers took {seconds(look.took_s)} to answer a handful of small requests.",
        (Number("answers took", round(look.took_s, 2), "s", situation.age_s(look.at_ms)),),
        {"server": "the brokers"},
    )


def failures(situation: Situation) -> list[QueryRun]:
    """Return the last runs in a row that ended with an error, with no batch done between them; oldest first."""
    if situation.reports is None or situation.stale:
        return []
    worked = {trigger.run_id for trigger in situation.reports.triggers if trigger.moved}
    found: list[QueryRun] = []
    for run in reversed(situation.reports.runs):
        if run.ended and run.error is None:
            break
        if run.ended:
            found.append(run)
        if run.run_id in worked:
            break
    return found[::-1]


def is_concurrent(run: QueryRun) -> bool:
    """Return whether a run failed because another one uses its checkpoint."""
    return _CONCURRENT.search(f"{run.error_class} {run.error}") is not None


def failed(situation: Situation) -> RuleMatch:
    """B8, B12: the error of the last run that failed, and how often."""
    found = failures(situation)
    run = found[-1]
    assert run.ended_ms is not None  # it failed
    planned = situation.folder.planned if situation.folder is not None else None
    age_s = situation.age_s(run.ended_ms)
    times = f"{len(found)} runs in a row ended" if len(found) >= FAILURES_MIN else "The last run ended"
    batch = f" in batch {planned.number}" if planned is not None else ""
    return RuleMatch(
        f"{times} with an error{batch}, the last {seconds(age_s)} ago: {last_words(run)}",
        (Number("failures", len(found), "", age_s),),
        {"batch": "?" if planned is None else str(planned.number)},
    )


_FRAME: Final = re.compile(r"^\s+(at |File |\.\.\. |raise |\^)|^Traceback|^\s*\^+\s*$|^\s+\S")
_WORDS_MAX: Final = 300


def last_words(run: QueryRun) -> str:
    """Return the line of an error that says what happened, without the frames of a stack."""
    lines = [line for line in (run.error or "").splitlines() if line.strip()]
    plain = [line for line in lines if not _FRAME.match(line)]
    said = [line for line in plain if re.match(r"^[\w.]*(Error|Exception|Loss|Refused|\w+Missing)\b.*?:", line)]
    text = (said[-1] if said else plain[0] if plain else run.error_class or "no text").strip()
    text = text if len(text) <= _WORDS_MAX else f"{text[:_WORDS_MAX]}…"
    return text if text.endswith((".", "…", "!")) else f"{text}."


def _first_batch(situation: Situation) -> RuleMatch | None:
    """B9"""
    planned, age_s = situation.folder.planned if situation.folder is not None else None, situation.running_s
    if planned is None or age_s is None or planned.number != 0 or age_s < FIRST_S or situation.look is None:
        return None
    starts = {lag.where: lag.available.start for lag in situation.known_lags if lag.available is not None}
    size = sum(
        max(0, end - starts[where])
        for source in situation.ours
        if source.planned is not None
        for where, end in source.planned.offsets.items()
        if where in starts
    )
    unit = next((unit_of(where) for where in starts), "bytes")
    return RuleMatch(
        f"The first batch has been running for {seconds(age_s)}; it may hold everything that was there, up to "
        f"{amount(size, unit)}.",
        (Number("first batch", size, unit, situation.age_s(situation.look.at_ms)),),
    )


def waits_for_more(situation: Situation) -> RuleMatch:
    """B10: the driver looks, sees messages and makes no batch of them."""
    options = {name.lower(): value for name, value in situation.evidence.options.items()}
    least = options.get("minoffsetspertrigger")
    delay = options.get("maxtriggerdelay")
    began_ms = (
        situation.folder.batches[-1].planned_ms if situation.folder is not None and situation.folder.batches else 0
    )
    lag = situation.lag
    messages = "" if lag is None or lag.messages is None else f" of which {lag.messages:,} are there"
    if least is not None:
        sentence = f"The query waits for {least} messages (minOffsetsPerTrigger){messages}"
        if delay is None:
            sentence += f"; without them, the next batch begins at about {clock(began_ms + DELAY_MS_USUAL)}"
        else:
            sentence += f", at most for {delay} (maxTriggerDelay) after the last batch"
    else:
        sentence = "The driver looks for messages regularly and makes no batch of those that wait"
        sentence += f"; the last batch began {seconds(situation.age_s(began_ms))} ago" if began_ms else ""
    return RuleMatch(f"{sentence}.", lag_numbers(situation))


def no_driver(situation: Situation) -> RuleMatch:
    """B11: no driver runs, and messages wait."""
    run = situation.run
    assert run is not None  # judgement looked
    where = f" (host {run.driver.get('host')}, process {run.driver.get('pid')})" if run.driver.get("host") else ""
    if run.ended_ms is not None:
        age_s, what = situation.age_s(run.ended_ms), "ended without an error: it was stopped, or its work was done"
    elif run.process_ended:
        age_s, what = situation.age_s(run.alive_ms), "is none any more; it did not report its end"
    else:
        age_s, what = situation.age_s(run.alive_ms), "has been silent since; it ended, or it hangs"
    verb = "run" if run.ended_ms is not None else "driver"
    sentence = f"The {verb} of the query{where} {what}. Last sign of life {seconds(age_s)} ago"
    if situation.lag is not None and situation.lag.offsets and situation.lag.seconds is not None:
        sentence += f"; messages wait since {seconds(situation.lag.seconds)}"
    return RuleMatch(
        f"{sentence}.", (Number("last sign of life", round(age_s, 1), "s ago", 0.0), *lag_numbers(situation))
    )


RULES: Final = (
    Rule("B1", "a batch runs within its usual time", (C,), "Nothing to do.", WATCH),
    Rule(
        "B2",
        "a batch takes far longer than usual",
        (C, P),
        "Look at what the batch does: Spark's UI, page Stages, or a thread dump of an executor.",
        LAST,
    ),
    Rule(
        "B3",
        "the trigger has not fired",
        (C, S),
        "Wait, or give the query a shorter interval (trigger(processingTime=...)); a run with availableNow must be "
        "started again.",
        WATCH,
    ),
    Rule(
        "B4",
        "the query asks for offsets, and a server does not answer",
        (S, P),
        "Look at {server}: is it up, reachable from the driver, and not overloaded? The query goes on by itself when "
        "it "
        "answers.",
        DOCTOR,
        _slow_planning,
        frozenset({QueryVerdict.STUCK}),
    ),
    Rule(
        "B5",
        "no core is free for the tasks of the batch",
        (U, C),
        "Another query or job has the cores: give the application more, run fewer queries in it, or use fair "
        "scheduler pools.",
        "{ui}/stages/",
        _no_cores,
        frozenset({QueryVerdict.STUCK}),
    ),
    Rule(
        "B6",
        "one partition has most of the batch",
        (C,),
        "{partition} is read by few tasks while others are done: set minPartitions or maxBytesPerPartition, which cut "
        "large partitions, and let producers spread their keys.",
        SHOW,
        _skew,
        frozenset({QueryVerdict.STUCK, QueryVerdict.FALLING_BEHIND, QueryVerdict.CATCHING_UP}),
    ),
    Rule(
        "B7",
        "tasks wait for a broker",
        (B, C),
        "Look at {server}: is it up, is its disk or network busy? Tasks go on by themselves when it answers.",
        DOCTOR,
        _slow_broker,
        frozenset({QueryVerdict.STUCK}),
    ),
    Rule(
        "B8",
        "the same batch fails again and again",
        (P,),
        "Restarting does not help. Correct what the error names; if it is a message that cannot be processed, batch "
        "{batch} of the checkpoint says between which offsets it is.",
        SHOW,
    ),
    Rule(
        "B9",
        "the first batch holds everything",
        (C, B),
        "Let it finish, or delete the checkpoint and start again with maxBytesPerTrigger, or with a later "
        "startingOffsets.",
        SHOW,
        _first_batch,
        frozenset({QueryVerdict.WORKING, QueryVerdict.STUCK}),
    ),
    Rule(
        "B10",
        "the query waits for more messages",
        (C, B, S),
        "Lower minOffsetsPerTrigger or maxTriggerDelay if that is too long. If the query has neither, its options do "
        "not select what waits: compare them with the partitions.",
        SHOW,
    ),
    Rule(
        "B11",
        "no driver runs, and messages wait",
        (P, B),
        "Start the query again, and look into the log of its driver for why it ended.",
        FILES,
    ),
    Rule(
        "B12",
        "the run failed",
        (P,),
        "Correct what the error names, and start the query again: it goes on where it was.",
        SHOW,
    ),
    Rule(
        "B13",
        "the query was moved and has not run since",
        (C,),
        "Start the query: it goes on at the new position. Or take the move back: metaq-spark checkpoint undo.",
        SHOW,
    ),
    Rule(
        "B14",
        "the query has just started",
        (P,),
        "Nothing to do: the first batch begins within seconds.",
        WATCH,
    ),
)
