"""From evidence to a verdict. Pure.

First ``_decide`` determines what the query does: it asks questions in a fixed order, and the first one that has an
answer gives the verdict and its rule. Then each rule of the table is asked. Findings that explain the verdict come
first; the first of all is the headline, with its advice. If nothing can be decided, the verdict is ``unknown``, with
what is missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from metaq_spark.backend import FORMATS
from metaq_spark.diagnosis.evidence import EvidenceKind, Missing, QueryEvidence
from metaq_spark.diagnosis.figures import figures
from metaq_spark.diagnosis.report import Diagnosis
from metaq_spark.diagnosis.rules import batches, files, phases, reading
from metaq_spark.diagnosis.rules.chinese import CHINESE, chinese_words
from metaq_spark.diagnosis.rules.row import Rule, RuleMatch, names, seconds
from metaq_spark.diagnosis.rules.table import RULES
from metaq_spark.diagnosis.situation import FIRST_S, USUAL_TIMES, Driver, Situation
from metaq_spark.diagnosis.verdict import QueryVerdict, RuleFinding
from metaq_spark.lag.unread import CLOCKS_S

KEEPS_UP_S: Final = 5.0
"""A time lag up to this, or to three batches, does not count."""
DIFFERENT: Final = 0.05
"""Rates that differ by less are the same."""
FRESH_S: Final = 3.0
"""A message that has waited for less may be in the next batch."""
NEW_S: Final = 30.0
"""Until then a new partition may still be found."""
LONG_S: Final = 60.0
"""Between triggers that are so far apart, a query waits."""
FAILURES_MIN: Final = 2
_STANDS: Final = "C13"
"""The lag is constant: reported with the reasons of a query that falls behind."""
_FIRST: Final = frozenset({"F0", "F4", "C11"})
"""The advice of these rules is shown before other advice."""

DRIVER: Final = Missing(EvidenceKind.PROGRESS, "whether a driver runs, and what it does", "--progress FILE or URL")
BROKERS: Final = Missing(EvidenceKind.BROKERS, "what the brokers hold now", "--brokers or --name-servers")
STATUS: Final = Missing(EvidenceKind.STATUS, "what the driver waits for", "--progress of a ProgressListener")
TRIGGER: Final = Missing(
    EvidenceKind.STATUS,
    "whether it was a run with availableNow, which ends by itself",
    "--progress of a ProgressListener",
)
FOLDER: Final = Missing(EvidenceKind.FOLDER, "the position and the batches of the query", "the checkpoint folder")
CLOCKS: Final = "the same time on all machines"
RATES: Final = Missing(EvidenceKind.BROKERS, "how fast messages arrive", "--watch, to look more than once")


@dataclass(frozen=True, slots=True)
class _Decision:
    verdict: QueryVerdict
    rule: str
    found: RuleMatch
    missing: tuple[Missing, ...] = ()


def judge(evidence: QueryEvidence) -> Diagnosis:
    """Return the verdict on ``evidence``, with all findings and with what is missing."""
    situation = Situation(evidence)
    decision = _decide(situation)
    found = [
        (rule, result)
        for rule in RULES.values()
        if rule.find is not None and (result := rule.find(situation)) is not None
    ]
    explained = QueryVerdict.FALLING_BEHIND if decision.rule == _STANDS else decision.verdict
    reasons = [(rule, result) for rule, result in found if explained in rule.explains]
    remarks = [(rule, result) for rule, result in found if explained not in rule.explains and rule.is_remark]
    base = (RULES[decision.rule], decision.found)
    reasons = [one for one in reasons if one[0] is not base[0]]
    ordered = [base, *reasons] if base[0].id in _FIRST else [*reasons, base]
    words = _words(evidence)
    findings = [
        *(_finding(rule, result, words, decision.verdict) for rule, result in ordered),
        *(_finding(rule, result, words, None) for rule, result in remarks),
    ]
    missing = tuple(dict.fromkeys([*decision.missing, *_missing(situation, decision.verdict)]))
    return Diagnosis(decision.verdict, tuple(findings), missing, figures(situation))


def _finding(rule: Rule, found: RuleMatch, words: Mapping[str, str], verdict: QueryVerdict | None) -> RuleFinding:
    known = _Words({**words, **found.words})
    advice, command = rule.advice.format_map(known), " ".join(rule.command.format_map(known).split())
    title_zh, advice_zh = CHINESE[rule.id]
    chinese = title_zh, advice_zh.format_map(_Words(chinese_words(known)))
    return RuleFinding(rule.id, found.sentence, advice, command, found.numbers, verdict, rule.title, chinese)


class _Words(dict[str, str]):
    """Words of a template; one that is not known stays a placeholder."""

    def __missing__(self, key: str) -> str:
        return key.upper()


def _words(evidence: QueryEvidence) -> dict[str, str]:
    """What commands name: the folder, how to reach the brokers, the reports."""
    options = {name.lower(): value for name, value in evidence.options.items()}
    reach, cluster = "", "CLUSTER"
    for name, one in FORMATS.items():
        if (brokers := options.get(one.brokers_option.lower())) is not None:
            reach = f"{one.flag} {shlex.quote(brokers)}"
            cluster = brokers if name == "metaq" else f"rocketmq://{brokers.replace(';', ',')}"
    if (zookeeper := options.get("zookeeper")) is not None:
        reach, cluster = f"--option zookeeper={shlex.quote(zookeeper)}", f"zk://{zookeeper}"
    folder = shlex.quote(evidence.folder.folder) if evidence.folder is not None else "CHECKPOINT"
    run = evidence.reports.last_run if evidence.reports is not None else None
    ui = str((run.driver.get("ui") if run is not None else None) or "SPARK_UI")
    words = {"folder": folder, "reach": reach, "cluster": shlex.quote(cluster), "ui": ui, "progress": ""}
    return words | {"watch": f"metaq-spark diagnose {folder} {reach} --watch"}


def _decide(situation: Situation) -> _Decision:
    questions = (_not_ours, _damaged, _moved_by_hand, _failed, _ended, _clocks, _late, _flows, _all_read, _not_moving)
    for question in questions:
        if (decision := question(situation)) is not None:
            return decision
    return _unknown("The evidence does not say what the query does.", _needed(situation))


def _needed(situation: Situation) -> tuple[Missing, ...]:
    """What would be needed at least to say more."""
    found = [] if situation.driver is not Driver.UNKNOWN else [DRIVER]
    found += [] if situation.lag is not None else [BROKERS]
    found += [] if situation.folder is not None else [FOLDER]
    return tuple(found) or (STATUS,)


def _unknown(sentence: str, missing: tuple[Missing, ...]) -> _Decision:
    return _Decision(QueryVerdict.UNKNOWN, "U0", RuleMatch(sentence), missing)


def _not_ours(situation: Situation) -> _Decision | None:
    if situation.folder is None or not situation.folder.sources or situation.ours:
        return None
    count = len(situation.folder.sources)
    sentence = "The source of this checkpoint does not belong to this connector."
    if count > 1:
        sentence = f"None of the {count} sources of this checkpoint belongs to this connector."
    return _Decision(QueryVerdict.NOT_OURS, "F0", RuleMatch(sentence))


def _damaged(situation: Situation) -> _Decision | None:
    if situation.folder is None or situation.folder.damage is None or situation.driver is Driver.ALIVE:
        return None
    return _Decision(QueryVerdict.FAILED, "F4", files.damaged(situation))


def _failed(situation: Situation) -> _Decision | None:
    """The last run failed, or run after run fails before it has done anything."""
    found, run = batches.failures(situation), situation.run
    if run is None or not found:
        return None
    if run.ended and run.error is not None:
        again = len(found) >= FAILURES_MIN and not batches.is_concurrent(found[-1])
        return _Decision(QueryVerdict.FAILED, "B8" if again else "B12", batches.failed(situation))
    if len(found) >= FAILURES_MIN and not situation.work and not run.ended:
        return _Decision(QueryVerdict.FAILED, "B8", batches.failed(situation))
    return None


def _ended(situation: Situation) -> _Decision | None:
    """No driver runs any more."""
    if situation.driver not in (Driver.ENDED, Driver.GONE):
        return None
    if situation.uncommitted or (situation.lag is not None and (situation.lag.offsets or _new_wait(situation))):
        waits = situation.one_run and situation.driver is Driver.ENDED and not situation.uncommitted
        if waits and not situation.suspects:
            return _Decision(QueryVerdict.WAITING, "B3", batches.waits_for_trigger(situation))
        ended_well = situation.driver is Driver.ENDED and situation.run is not None and situation.run.trigger is None
        return _Decision(QueryVerdict.GONE, "B11", batches.no_driver(situation), (TRIGGER,) if ended_well else ())
    if situation.lag is None:
        if situation.partial_lag is not None and situation.look is not None and situation.partial_lag.offsets:
            return _Decision(QueryVerdict.GONE, "B11", batches.no_driver(situation))
        return _unknown(batches.no_driver(situation).sentence + " Whether messages wait is not known.", (BROKERS,))
    return None


def _moved_by_hand(situation: Situation) -> _Decision | None:
    folder, run = situation.folder, situation.run
    if folder is None or folder.planned is None or not folder.moved or situation.driver is Driver.ALIVE:
        return None
    if run is not None and run.started_ms is not None and run.started_ms > folder.planned.planned_ms:
        return None
    said = f"The query was moved by batch {folder.planned.number}, which has not run yet."
    return _Decision(QueryVerdict.WAITING, "B13", RuleMatch(said), (DRIVER,))


def _no_batch_yet(situation: Situation) -> _Decision | None:
    """A driver has just started, and plans the first batch."""
    run, folder = situation.run, situation.folder
    if situation.driver is not Driver.ALIVE or run is None or run.started_ms is None or situation.work:
        return None
    age_s = situation.age_s(run.started_ms)
    if age_s > FIRST_S or (folder is not None and folder.batches):
        return None
    sentence = f"The query started {seconds(age_s)} ago and is preparing its first batch."
    return _Decision(QueryVerdict.WORKING, "B14", RuleMatch(sentence))


def _clocks(situation: Situation) -> _Decision | None:
    """File times in the future do not show how long a batch has run. Not needed if everything is read."""
    is_read = situation.lag is not None and not situation.lag.offsets and not situation.uncommitted
    if situation.ahead_s <= CLOCKS_S or is_read:
        return None
    ahead = seconds(situation.ahead_s)
    missing = Missing(EvidenceKind.FOLDER, f"when batches ran: the clock of their files is {ahead} ahead", CLOCKS)
    sentence = f"The newest file of the checkpoint is dated {ahead} in the future by this machine's clock."
    return _unknown(sentence, (missing,))


def _late(situation: Situation) -> _Decision | None:
    """A batch runs for longer than usual."""
    age_s = situation.running_s
    if age_s is None:
        return None
    late_s = situation.late_s
    if age_s <= (FIRST_S if late_s is None else late_s):
        return None
    found = batches.running(situation)
    if situation.driver is not Driver.ALIVE:
        return _unknown(f"{found.sentence} It is stuck, or no driver runs any more.", (DRIVER,))
    if late_s is None:
        return _Decision(QueryVerdict.WORKING, "B1", found)
    return _Decision(QueryVerdict.STUCK, "B2", found)


def _flows(situation: Situation) -> _Decision | None:
    """Batches are committed, or one runs within its usual time: does the query keep up?"""
    if situation.folder is None or (situation.running_s is None and not situation.moves):
        return None
    lag = situation.lag
    if lag is not None and not lag.offsets and not situation.uncommitted:
        return None
    if lag is None:
        partial = situation.partial_lag
        found = batches.running(situation) if situation.running_s is not None else phases.behind(situation)
        if partial is None or situation.away:
            return _Decision(QueryVerdict.WORKING, "B1", found, (_away(situation) or BROKERS,))
    trend = _trend(situation)
    status = situation.status
    if status is not None and "next trigger" in status.message.lower() and (situation.interval_s or 0.0) >= LONG_S:
        return trend if trend is not None and trend.verdict is QueryVerdict.FALLING_BEHIND else _waits(situation)
    if trend is None and situation.running_s is not None:
        return _Decision(QueryVerdict.WORKING, "B1", batches.running(situation), (RATES,))
    return trend or _Decision(QueryVerdict.WORKING, "C12", phases.behind(situation), (RATES,))


def _trend(situation: Situation) -> _Decision | None:
    """Compare the two slopes; ``None`` if they are not known and the lag is large."""
    lag, speeds = situation.lag or situation.partial_lag, situation.rates
    assert lag is not None  # the caller looked
    found = phases.behind(situation)
    pace_s = max(situation.pace_s, situation.usual_s or 0.0)
    waits_s = lag.seconds if lag.seconds is not None else situation.arrivals_s
    if waits_s is not None and waits_s <= max(KEEPS_UP_S, USUAL_TIMES * pace_s):
        running = situation.running_s is not None
        return _Decision(
            QueryVerdict.WORKING, "B1" if running else "C12", batches.running(situation) if running else found
        )
    gain = None if speeds is None else speeds.gain_per_s
    if speeds is None or gain is None:
        return None
    assert speeds.service_per_s is not None  # there is a gain
    assert speeds.arrival_per_s is not None
    least = DIFFERENT * max(speeds.service_per_s, speeds.arrival_per_s)
    if gain > least:
        return _Decision(QueryVerdict.CATCHING_UP, "C11", found)
    if gain < -least:
        return _Decision(QueryVerdict.FALLING_BEHIND, "C10", found)
    return _Decision(QueryVerdict.WORKING, _STANDS, found)


def _new_wait(situation: Situation) -> bool:
    """Whether messages wait in partitions that the query would find: not if it is known to read a fixed list."""
    return bool(situation.new_lags) and "assign" not in {name.lower() for name in situation.evidence.options}


def _all_read(situation: Situation) -> _Decision | None:
    lag = situation.lag
    if lag is None or lag.offsets or situation.suspects or situation.look is None:
        return None
    if situation.others:
        said = names([f"source {one.number}" for one in situation.others])
        belong = "belongs" if len(situation.others) == 1 else "belong"
        missing = Missing(
            EvidenceKind.FOLDER, f"whether {said}, of another connector, has something to read", "its own tools"
        )
        status = situation.status
        if status is None or status.data_available or status.trigger_active:
            return _unknown(
                f"The sources of this connector are read to their end; {said} {belong} to another one.", (missing,)
            )
    if _new_wait(situation) and situation.driver is Driver.UNKNOWN:
        sentence = "Messages wait in partitions that the query has not read yet, and whether a driver runs is unknown."
        return _unknown(sentence, (DRIVER,))
    found = reading.idle(situation)
    fresh = [lag.seconds for lag in situation.new_lags if lag.seconds is not None and lag.seconds < NEW_S]
    if fresh and _new_wait(situation) and len(fresh) == len(situation.new_lags):
        sentence = f"A partition appeared {seconds(max(fresh))} ago; the query finds it by itself."
        return _Decision(QueryVerdict.WORKING, "C12", RuleMatch(sentence))
    if situation.driver in (Driver.ENDED, Driver.GONE):
        found = RuleMatch(f"{found.sentence} No driver runs.", found.numbers, found.words)
    return _Decision(QueryVerdict.IDLE, "A1", found)


def _not_moving(situation: Situation) -> _Decision | None:
    """Messages wait, or that is not known, and no batch runs."""
    lag, status, age_s = situation.lag, situation.status, situation.quiet_s
    planning_s = batches.planning_s(situation)
    if situation.driver is Driver.ALIVE and planning_s is not None and planning_s >= batches.PLANNING_S_MIN:
        found = RULES["B4"].find(situation) if RULES["B4"].find is not None else None
        return _Decision(QueryVerdict.STUCK, "B4", found) if found is not None else None
    if situation.suspects and situation.driver is Driver.ALIVE:
        suspect = situation.suspects[0]
        return _Decision(
            QueryVerdict.STUCK, "B2", RuleMatch(f"The query waits at {suspect.where}, offset {suspect.read_to}.")
        )
    if lag is None:
        if (early := _no_batch_yet(situation)) is not None:
            return early
        last = situation.work[-1] if situation.work and situation.driver is Driver.ALIVE else None
        done = "" if last is None else f"The last batch ended {seconds(situation.age_s(last.ended_ms))} ago. "
        return _unknown(f"{done}How much is unread is not known.", (_away(situation) or BROKERS,))
    fresh = lag.seconds is not None and lag.seconds <= max(FRESH_S, 2 * (situation.usual_s or 0.0))
    if situation.driver is not Driver.ALIVE:
        since = "" if age_s is None else f"; the last batch was committed {seconds(age_s)} ago"
        return _unknown(f"{phases.behind(situation).sentence[:-1]}{since}.", (DRIVER,))
    if status is not None and "next trigger" in status.message.lower():
        return _waits(situation)
    if fresh:
        return _Decision(QueryVerdict.WORKING, "C12", phases.behind(situation))
    if status is None and situation.reports is not None and situation.reports.idle_ms is None:
        return _unknown(f"{phases.behind(situation).sentence[:-1]}, and no batch runs.", (STATUS,))
    if status is None or (not status.trigger_active and not status.data_available):
        return _Decision(QueryVerdict.WAITING, "B10", batches.waits_for_more(situation))
    age_s = situation.age_s(status.since_ms)
    sentence = f"Messages wait, and for {seconds(age_s)} the driver has reported: {status.message}."
    if status.trigger_active and age_s < batches.PLANNING_S_MIN:
        return _Decision(QueryVerdict.WORKING, "B1", RuleMatch(f"A trigger is at work: {status.message}."))
    return _Decision(
        QueryVerdict.STUCK,
        "B2",
        RuleMatch(sentence),
    )


def _waits(situation: Situation) -> _Decision:
    """The driver waits for its next trigger: on purpose, unless that was due long ago."""
    due_ms = batches.next_trigger_ms(situation)
    found = batches.waits_for_trigger(situation)
    if due_ms is not None and situation.now_ms > due_ms + 1000 * max(60.0, 2 * (situation.interval_s or 0)):
        late = f"{found.sentence} It was due {seconds(situation.age_s(int(due_ms)))} ago."
        return _Decision(QueryVerdict.STUCK, "B3", RuleMatch(late, found.numbers))
    return _Decision(QueryVerdict.WAITING, "B3", found)


def _away(situation: Situation) -> Missing | None:
    """What is not known because a server does not answer."""
    if situation.away:
        return Missing(
            EvidenceKind.BROKERS, f"what {names(situation.away)} holds: no answer", "a server that answers"
        )
    error = situation.evidence.brokers.error if situation.evidence.brokers is not None else None
    return (
        None
        if error is None
        else Missing(EvidenceKind.BROKERS, f"what the brokers hold: {error}", "servers that answer")
    )


_ASKED: Final[Mapping[EvidenceKind, Missing]] = {
    EvidenceKind.FOLDER: FOLDER,
    EvidenceKind.PROGRESS: DRIVER,
    EvidenceKind.BROKERS: BROKERS,
}


def _missing(situation: Situation, verdict: QueryVerdict) -> Iterator[Missing]:
    """Name the evidence that there was not, whatever the verdict: other rules might have applied."""
    evidence = situation.evidence
    for kind, reason in evidence.unread.items():
        yield Missing(
            kind, f"{_ASKED[kind].what if kind in _ASKED else 'what Spark runs'}: {reason}", "one that can be read"
        )
    if verdict is QueryVerdict.NOT_OURS:
        return
    if evidence.folder is None and EvidenceKind.FOLDER not in evidence.unread:
        yield FOLDER
    nothing_to_ask = evidence.folder is not None and not evidence.folder.batches
    if evidence.brokers is None and EvidenceKind.BROKERS not in evidence.unread and not nothing_to_ask:
        yield BROKERS
    elif (situation.look is None or situation.away) and (away := _away(situation)) is not None:
        yield away
    if evidence.reports is None and EvidenceKind.PROGRESS not in evidence.unread:
        yield DRIVER
    elif situation.driver_clock_s is not None:
        ahead = seconds(situation.driver_clock_s)
        yield Missing(EvidenceKind.PROGRESS, f"whether a driver runs: its clock is {ahead} ahead", CLOCKS)
    elif situation.stale:
        run = situation.run
        ended = "" if run is None else f"; the last one is {seconds(situation.age_s(run.alive_ms))} old"
        yield Missing(
            EvidenceKind.PROGRESS,
            f"whether a driver runs: the checkpoint is newer than the reports{ended}",
            DRIVER.give,
        )
    elif situation.driver is Driver.UNKNOWN and evidence.reports is not None:
        yield DRIVER
    for source in situation.others:
        what = f"the lag of source {source.number}, which is of another connector"
        yield Missing(EvidenceKind.FOLDER, what, "its own tools")
