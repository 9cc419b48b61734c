"""Block F: the checkpoint itself."""

from __future__ import annotations

from typing import Final

from metaq_spark.diagnosis.rules.batches import is_concurrent
from metaq_spark.diagnosis.rules.row import FILES, SHOW, TOPICS, C, P, Rule, RuleMatch, names, seconds
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import Number, QueryVerdict

UNCOMMITTED_MAX: Final = 1
"""Planned batches without a commit, after any crash of Spark."""


def _two_drivers(situation: Situation) -> RuleMatch | None:
    """F1"""
    reports = situation.reports
    if reports is None:
        return None
    failed = [run for run in reports.runs if run.ended and is_concurrent(run)]
    if reports.overlapping is not None:
        first, second = reports.overlapping
        text = f"Two runs of the query report in turn: {_where(first)} and {_where(second)}"
    elif failed:
        text = f"A run ended because another one writes the same checkpoint: {_where(failed[-1])}"
    else:
        return None
    age_s = situation.age_s(reports.runs[-1].alive_ms)
    return RuleMatch(f"{text}.", (Number("runs", len(reports.runs), "", age_s),))


def _where(run: object) -> str:
    driver = getattr(run, "driver", {})
    if driver.get("host"):
        return f"process {driver.get('pid')} on {driver['host']}"
    return f"run {getattr(run, 'run_id', '?')}"


def _many_uncommitted(situation: Situation) -> RuleMatch | None:
    """F2"""
    folder = situation.folder
    if folder is None or folder.uncommitted <= UNCOMMITTED_MAX:
        return None
    return RuleMatch(
        f"{folder.uncommitted} batches are planned and not committed; a crash leaves one.",
        (Number("planned batches", folder.uncommitted, "", 0.0),),
    )


def _other_topics(situation: Situation) -> RuleMatch | None:
    """F3"""
    wanted = next((value for key, value in situation.evidence.options.items() if key.lower() == "subscribe"), None)
    known = {where.topic for source in situation.ours for where in source.known.offsets}
    if wanted is None or not known:
        return None
    topics = {topic.strip() for topic in wanted.split(",")}
    if topics & known:
        return None
    return RuleMatch(
        f"The checkpoint has positions of {names(sorted(known))}, and the query subscribes to {names(sorted(topics))}.",
        (Number("topics of the checkpoint", len(known), "", 0.0),),
    )


def damaged(situation: Situation) -> RuleMatch:
    """F4"""
    assert situation.folder is not None  # judgement looked
    assert situation.folder.damage is not None
    file, what = situation.folder.damage
    name = file.rpartition("/")[2]
    repeated = f"batch {name} is planned anew" if file.startswith("offsets") else f"batch {name} is run again"
    return RuleMatch(f"The file {file} {what}.", (Number("file", file, "", 0.0),), {"file": file, "repeated": repeated})


def _other_query(situation: Situation) -> RuleMatch | None:
    """F5"""
    folder, reports = situation.folder, situation.reports
    if folder is None or folder.query_id is None or reports is None or reports.runs or not reports.others:
        return None
    return RuleMatch(
        f"The reports are of query {names(reports.others)}, the checkpoint is of query {folder.query_id}.",
        (Number("queries in the reports", len(reports.others), "", situation.age_s(reports.read_ms)),),
    )


RULES: Final = (
    Rule(
        "F1",
        "two drivers use one checkpoint",
        (P,),
        "Stop one of them. Give each query a checkpointLocation of its own.",
        FILES,
        _two_drivers,
        frozenset(set(QueryVerdict) - {QueryVerdict.NOT_OURS}),
    ),
    Rule(
        "F2",
        "more than one batch is planned and not committed",
        (C,),
        "The folder was copied while the query ran, or is damaged: copy it again while the query is stopped.",
        FILES,
        _many_uncommitted,
        frozenset({QueryVerdict.UNKNOWN, QueryVerdict.FAILED}),
    ),
    Rule(
        "F3",
        "the checkpoint is of other topics",
        (C,),
        "Start the query with the topics of its checkpoint, or with a new checkpoint; metaq-spark checkpoint drop "
        "lets it "
        "forget a topic.",
        TOPICS,
        _other_topics,
        frozenset({QueryVerdict.IDLE, QueryVerdict.FAILED, QueryVerdict.STUCK, QueryVerdict.UNKNOWN}),
    ),
    Rule(
        "F4",
        "the newest file of the checkpoint is damaged",
        (C,),
        "While the query is stopped, move {file} and its .crc file out of the folder: {repeated}.",
        FILES,
    ),
    Rule(
        "F5",
        "the reports are of another query",
        (C, P),
        "Somebody started the query with another checkpointLocation, or these are the reports of another one.",
        SHOW,
        _other_query,
        frozenset({QueryVerdict.UNKNOWN}),
    ),
)

__all__ = ["RULES", "damaged", "seconds"]
