"""The control commands: each is a row of ``ctl`` with the function that the broker runs."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import metaq
from metaq.model import TransactionId, parse_transaction_id
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.partitions.losses import Loss
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.partitions.recovery import RecoveryReport
from metaq_broker.log.retention.retention import RetentionFailed, Retired
from metaq_broker.operate.config.sections import TopicConfig
from metaq_broker.operate.control import answers
from metaq_broker.operate.control.actions import (
    ACTIONS,
    ANY_TOPIC,
    INDEX,
    KEY,
    OFFSET,
    PARTITIONS,
    STEP,
    TOPIC,
    WAIT,
    action,
    force,
    word,
)
from metaq_broker.operate.control.messages import MALFORMED, REFUSED, CommandRefused, Result
from metaq_broker.operate.control.reload import ReloadRefused
from metaq_broker.operate.control.services import BrokerParts
from metaq_broker.replication.driver.pair_replication import PairReplication, SwitchRefused
from metaq_broker.replication.roles import PromotionRefused
from metaq_broker.transactions.interfaces import Done
from metaq_broker.transactions.outcomes import Outcome, TransactionRefused

__all__ = ["ACTIONS"]

_OUTCOMES: Final = {"commit": Outcome.COMMITTED, "rollback": Outcome.ROLLED_BACK, "complete": Outcome.COMPLETED}
_OUTCOME_WORDS: Final = {
    Outcome.COMMITTED: "committed",
    Outcome.ROLLED_BACK: "rolled_back",
    Outcome.COMPLETED: "completed",
}

ROWS_PER_QUANTUM: Final = 256
"""Number of partitions that are listed before clients are served again."""


@action(
    "status",
    "state of the broker",
    lines=answers.status,
    reads=True,
    doc="shows the state of the broker: address, uptime, folders and free space, replication, durability, "
    "connections, messages, transactions; what is read-only, damaged, lost, closed, not served, whether the "
    "clock is doubted, and which keys take effect only at a restart",
)
async def _status(parts: BrokerParts) -> Result:
    await parts.guard.check()  # for the current free space
    engine, reloader = parts.engine, parts.reloader
    logs = list(parts.engine.stores.logs())
    return {
        "version": metaq.__version__,
        "pid": os.getpid(),
        "uptime_s": engine.statistics.uptime_s,
        "broker_id": engine.config.system.broker_id,
        "address": str(parts.address),
        "metrics_address": _text_or_none(parts.metrics_address),
        "data": [
            {"path": folder.path, "free_bytes": folder.free_bytes, "puts_refused": folder.refusal}
            for folder in parts.guard.folders()
        ],
        "config": {
            "file": _text_or_none(reloader.file),
            "checksum": engine.config.checksum,
            "loaded_ms": reloader.loaded_ms,
            "restart_needed": list(reloader.restart_needed),
        },
        "zookeeper": await _zookeeper_state(parts),
        "replication": parts.replication.facts(),
        "durability": _durabilities(parts),
        "connections": engine.statistics.connection_counts.connections,
        "topics": len({log.topic for log in logs}),
        "partitions": len(logs),
        "messages": sum(log.message_count for log in logs),
        "bytes": sum(log.end_offset - log.start_offset for log in logs),
        "transactions": _transaction_counts(parts),
        "stuck_commits": parts.transactions.stuck_commits(),
        "closed": [{"topic": topic, "index": index} for topic, index in engine.closed_partitions()],
        "read_only": [{**_name(log), "reason": log.failure} for log in logs if log.failure is not None],
        "not_served": [
            {"topic": topic, "index": index, "reason": reason} for topic, index, reason in parts.engine.stores.refused()
        ],
        "quarantined": [{**_name(log), "bytes": _quarantined(log)} for log in logs if log.quarantined],
        "clock": parts.engine.id_clock.doubt(),
        "lost": [_loss(*each) for each in parts.engine.stores.losses()],
    }


async def _zookeeper_state(parts: BrokerParts) -> dict[str, str] | None:
    registration = parts.registration()
    if registration is None:
        return None
    state, reason = await registration.look()
    return {"address": str(registration.address), "state": state.value, "reason": reason}


def _durabilities(parts: BrokerParts) -> dict[str, Any]:
    config = parts.engine.config
    usual = _durability(config.system)
    others = {
        name: mode
        for name, topic in config.topics.items()
        if (mode := _durability(topic)) != usual and not config.hides(name)
    }
    return {**usual, "topics": others}


def _transaction_counts(parts: BrokerParts) -> dict[str, int]:
    manager = parts.transactions
    return {
        "open": manager.open_count,
        "prepared": len(manager.prepared()),
        "committed": manager.counters.tx_commit,
        "rolled_back": manager.counters.tx_rollback,
        "journal_bytes": manager.journal_bytes,
    }


@action(
    "topics",
    "topics, with their sizes and rules",
    lines=answers.topics,
    reads=True,
)
async def _topics(parts: BrokerParts) -> Result:
    config = parts.engine.config
    stored = {topic: list(logs) for topic, logs in groupby(parts.engine.stores.logs(), lambda log: log.topic)}
    next_runs = {plan.topic: plan.next_ms for plan in parts.retention.plan()}
    return {
        "topics": [
            _topic_row(parts, name, stored.get(name, [])) | {"next_retention_ms": next_runs.get(name)}
            for name in sorted({*(name for name in config.topics if not config.hides(name)), *stored})
        ]
    }


def _topic_row(parts: BrokerParts, name: str, logs: list[PartitionLog]) -> dict[str, Any]:
    settings = parts.engine.config.topic_settings(name)
    return {
        "topic": name,
        "accepted": parts.engine.config.accepts(name),
        "num_partitions": settings.num_partitions,
        "partitions": len(logs),
        "messages": sum(log.message_count for log in logs),
        "bytes": sum(log.end_offset - log.start_offset for log in logs),
        **_durability(settings),
        "delete_policy": settings.delete_policy,
        "delete_when": settings.delete_when,
        "data_path": settings.data_path,
    }


@action(
    "partitions",
    "partitions, with their offsets and states",
    ANY_TOPIC,
    lines=answers.partitions,
    reads=True,
    doc="shows start, end, readable end, messages, segments, size and state of every partition; a topic that the "
    "broker does not have is an error",
)
async def _partitions(parts: BrokerParts, topic: str | None) -> Result:
    rows: list[dict[str, Any]] = []
    logs = [log for log in parts.engine.stores.logs() if topic in (None, log.topic)]
    for number, log in enumerate(logs, 1):
        rows.append(_partition_row(parts, log))
        if number % ROWS_PER_QUANTUM == 0:
            await asyncio.sleep(0)
    rows += _not_served_rows(parts, topic)
    if not rows and topic is not None and topic not in parts.engine.config.topics:
        if parts.engine.config.accepts(topic):
            raise CommandRefused(REFUSED, f"this broker has no topic {topic!r} yet; the first put creates it")
        raise CommandRefused(REFUSED, f"this broker has no topic {topic!r}")
    return {"partitions": sorted(rows, key=lambda row: (row["topic"], row["index"]))}


def _partition_row(parts: BrokerParts, log: PartitionLog) -> dict[str, Any]:
    return {
        **_name(log),
        "start": log.start_offset,
        "end": log.end_offset,
        "readable_end": log.readable_end,
        "messages": log.message_count,
        "segments": log.segment_count,
        "bytes": log.end_offset - log.start_offset,
        "closed": parts.engine.is_closed(log.topic, log.index),
        "failure": log.failure,
        "quarantined": [[damaged.start, damaged.end] for damaged in log.quarantined],
    }


def _not_served_rows(parts: BrokerParts, wanted: str | None) -> Iterator[dict[str, Any]]:
    for topic, index, reason in parts.engine.stores.refused():
        if wanted in (None, topic):
            closed = parts.engine.is_closed(topic, index)
            yield {"topic": topic, "index": index, "closed": closed, "not_served": reason}


@action(
    "close",
    "refuse puts and gets on partitions until `open` or a restart",
    TOPIC,
    PARTITIONS,
    lines=answers.done("closed"),
    doc="puts and gets are refused with 403 and MetaQ's text. The state is kept in memory only, as in MetaQ: a "
    "restart opens the partitions",
)
async def _close(parts: BrokerParts, topic: str, indexes: Sequence[int]) -> Result:
    parts.maintenance.close(topic, indexes)
    return {"topic": topic, "closed": list(indexes)}


@action(
    "open",
    "undo close",
    TOPIC,
    PARTITIONS,
    lines=answers.done("opened"),
)
async def _open(parts: BrokerParts, topic: str, indexes: Sequence[int]) -> Result:
    parts.maintenance.open(topic, indexes)
    return {"topic": topic, "opened": list(indexes)}


@action(
    "acknowledge",
    "stop reporting lost data of partitions",
    TOPIC,
    PARTITIONS,
    lines=answers.done("acknowledged"),
    doc="stops reporting the data that these partitions have lost; the data stays lost",
)
async def _acknowledge(parts: BrokerParts, topic: str, indexes: Sequence[int]) -> Result:
    return {"topic": topic, "acknowledged": await parts.maintenance.acknowledge(topic, indexes)}


@action(
    "delete",
    "remove partitions with their messages",
    TOPIC,
    PARTITIONS,
    force("even if they are not closed"),
    lines=answers.done("deleted"),
    doc="removes partitions from the disk, archives included. They must be closed, unless `--force`. Readers get "
    "404; a later put creates the partition again, from offset 0",
)
async def _delete(parts: BrokerParts, topic: str, indexes: Sequence[int], force: bool) -> Result:
    if isinstance(parts.replication, PairReplication) and (reason := parts.replication.refusal) is not None:
        raise CommandRefused(REFUSED, f"{reason}; what is deleted there is removed here, too")
    return {"topic": topic, "deleted": await parts.maintenance.delete(topic, indexes, force=force)}


@action(
    "move",
    "give closed partitions other indexes",
    TOPIC,
    PARTITIONS,
    OFFSET,
    lines=answers.moved,
    doc="adds K to the indexes of closed partitions, or gives the first one that INDEX. Old and new indexes stay "
    "closed until opened",
)
async def _move(parts: BrokerParts, topic: str, indexes: Sequence[int], by: int) -> Result:
    moved = await parts.maintenance.move(topic, indexes, by)
    return {"topic": topic, "moved": [list(pair) for pair in moved]}


@action(
    "reopen",
    "recover a partition that takes no messages",
    TOPIC,
    INDEX,
    lines=answers.reopened,
    doc="recovers a partition that has been read-only since a write or sync failed, or could not be opened at the "
    "start. It can be read meanwhile; messages that were never acknowledged may be cut. Commits that failed "
    "because of it are completed within 10 s; `status` lists them until then. In a pair, `switch` or a restart "
    "does it",
)
async def _reopen(parts: BrokerParts, topic: str, index: int) -> Result:
    report = await parts.maintenance.reopen(topic, index)
    return {"topic": topic, "index": index, **_recovered(report)}


def _recovered(report: RecoveryReport) -> dict[str, Any]:
    return {
        "bytes_cut": report.bytes_cut,
        "cut_at": report.cut_at,
        "bytes_quarantined": report.bytes_quarantined,
        "warnings": list(report.warnings()),
    }


@action(
    "transactions",
    "prepared transactions, and those that were completed manually",
    lines=answers.transactions,
    reads=True,
)
async def _transactions(parts: BrokerParts) -> Result:
    prepared = [
        {
            "key": str(each.key),
            "age_ms": each.age_ms,
            "messages": each.messages,
            "bytes": each.byte_count,
            "partitions": [{"topic": topic, "index": index} for topic, index in each.partition_keys],
        }
        for each in parts.transactions.prepared()
    ]
    ended = [{"key": str(key), "outcome": _OUTCOME_WORDS[outcome]} for key, outcome in parts.transactions.outcomes()]
    return {"prepared": prepared, "ended_by_hand": ended}


@action(
    "transaction",
    "complete a prepared transaction, or forget its outcome",
    STEP,
    KEY,
    lines=answers.transaction,
    doc="ends a prepared transaction whose coordinator is gone. `complete` drops its messages and records the "
    "outcome as unknown. The coordinator gets the matching XA code (7, 6, 8) until it sends FORGET. `accept` "
    "lets a decided branch whose messages are lost count as committed; `forget` does the FORGET in place of "
    "the coordinator",
)
async def _transaction(parts: BrokerParts, step: str, text: str) -> Result:
    key = _key(text)
    try:
        if step == "forget":
            return await _forget_ended(parts, key)
        if step == "accept":
            parts.transactions.accept_missing(key)
            await _recorded(parts, f"accept of transaction '{key}'")
            return {"key": str(key), "outcome": "accepted"}
        await _end_by_hand(parts, key, step)
    except TransactionRefused as refused:
        raise CommandRefused(REFUSED, parts.describe(refused.refusal)) from refused
    return {"key": str(key), "outcome": _OUTCOME_WORDS[_OUTCOMES[step]]}


async def _end_by_hand(parts: BrokerParts, key: TransactionId, action: str) -> None:
    if action not in _OUTCOMES:
        allowed = f"{', '.join(_OUTCOMES)}, accept or forget"
        raise CommandRefused(MALFORMED, f"action {action[:80]!r}: expected {allowed}")
    await _done(lambda done: parts.transactions.end_heuristically(key, _OUTCOMES[action], done))


async def _recorded(parts: BrokerParts, change: str) -> None:
    """Return when a change that was just made is durable."""
    await _done(lambda done: parts.transactions.when_recorded(change, done))


async def _done(begin: Callable[[Done], None]) -> None:
    """Wait for the callback of a step. Raises ``TransactionRefused``."""
    ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    begin(ended.set_result)
    refusal = await ended
    if refusal is not None:
        raise TransactionRefused(refusal)


async def _forget_ended(parts: BrokerParts, key: TransactionId) -> Result:
    known = [str(each) for each, _ in parts.transactions.outcomes()]
    if str(key) not in known:
        raise CommandRefused(REFUSED, f"nothing is remembered of transaction {key}")
    parts.transactions.forget(key)
    await _recorded(parts, f"forget of transaction '{key}'")
    return {"key": str(key), "outcome": "forgotten"}


def _key(text: str) -> TransactionId:
    try:
        return parse_transaction_id(text)
    except ValueError as error:
        raise CommandRefused(MALFORMED, str(error)) from None


@action(
    "retention",
    "remove old segments without waiting for deleteWhen",
    word("run"),
    ANY_TOPIC,
    lines=answers.retention,
    doc="applies `deletePolicy` now, without waiting for `deleteWhen`",
)
async def _retention(parts: BrokerParts, topic: str | None) -> Result:
    engine = parts.engine
    if topic is not None and not engine.config.accepts(topic) and not engine.stores.has_topic(topic):
        raise CommandRefused(REFUSED, f"this broker has no topic {topic!r}")
    rows = [
        {
            "topic": each.topic,
            "index": each.partition,
            "how": each.removal.value,
            "segments": each.segments,
            "bytes": each.byte_count,
            "failure": each.failure,
        }
        for each in await _run_retention(parts, topic)
    ]
    return {"removed": rows}


async def _run_retention(parts: BrokerParts, topic: str | None) -> list[Retired]:
    try:
        return await parts.retention.run_now(topic)
    except RetentionFailed as refused:
        raise CommandRefused(REFUSED, str(refused)) from refused


@action(
    "clock",
    "accept a clock that has jumped: messages are deleted by age again",
    word("accept"),
    lines=answers.clock,
    doc="accepts a clock that has [jumped](operations.md#when-the-clock-is-wrong): puts are accepted and "
    "segments deleted by age at once",
)
async def _clock(parts: BrokerParts) -> Result:
    clock = parts.engine.id_clock
    if not clock.accept():
        raise CommandRefused(REFUSED, clock.fault or "the clock is trusted: there is nothing to accept")
    return {"accepted": True}


@action(
    "reload",
    "read the configuration file again",
    lines=answers.reload,
    doc="see [Reload](#reload)",
)
async def _reload(parts: BrokerParts) -> Result:
    try:
        report = await parts.reloader.reload()
    except ReloadRefused as refused:
        raise CommandRefused(REFUSED, f"{refused}; nothing has changed") from refused
    return dataclasses.asdict(report)


@action(
    "promote",
    "make a slave a master, for good",
    force("without checking whether its master is running"),
    lines=answers.promoted,
    doc="makes a slave a master, for good: see [replication](replication.md#promotion)",
)
async def _promote(parts: BrokerParts, force: bool) -> Result:
    try:
        await parts.replication.promote(force=force)
    except PromotionRefused as refused:
        raise CommandRefused(REFUSED, str(refused)) from refused
    return {"promoted": True}


@action(
    "switch",
    "hand over to the other member of the pair",
    lines=answers.switched,
    doc="on the master of a [pair](replication.md#the-pair-that-elects-its-master): the other member is elected, and "
    "this one becomes its slave; nothing changes if that takes longer than a second",
)
async def _switch(parts: BrokerParts) -> Result:
    pair = _member(parts)
    try:
        await pair.switch()
    except SwitchRefused as refused:
        raise CommandRefused(REFUSED, str(refused)) from refused
    return {"master": pair.master}


@action(
    "leave",
    "leave the set of members in sync",
    lines=answers.left,
    doc="on the slave of a pair: its master does not wait for it any more, and it is not elected, until `join` or a "
    "restart; it goes on copying",
)
async def _leave(parts: BrokerParts) -> Result:
    try:
        _member(parts).leave()
    except SwitchRefused as refused:
        raise CommandRefused(REFUSED, str(refused)) from refused
    return {"left": True}


@action(
    "join",
    "join the set of members in sync again",
    lines=answers.joined,
    doc="undoes `leave`: the member joins when it has everything",
)
async def _join(parts: BrokerParts) -> Result:
    _member(parts).join()
    return {"joined": True}


def _member(parts: BrokerParts) -> PairReplication:
    if not isinstance(parts.replication, PairReplication):
        raise CommandRefused(REFUSED, "this broker is not a member of a pair ([pair])")
    return parts.replication


@action(
    "shutdown",
    "stop the broker, as SIGTERM does",
    WAIT,
    lines=answers.shutdown,
    doc="stops the broker as SIGTERM does; with `--wait` returns when it has stopped and the folder is free",
)
async def _shutdown(parts: BrokerParts) -> Result:
    parts.stop()
    return {"stopping": True}


def _name(log: PartitionLog) -> dict[str, Any]:
    return {"topic": log.topic, "index": log.index}


def _loss(topic: str, index: int, loss: Loss) -> dict[str, Any]:
    partition_key = {"topic": topic, "index": index, "start": loss.start, "end": loss.end}
    return {**partition_key, "found_ms": loss.time_ms, "reason": loss.reason}


def _quarantined(log: PartitionLog) -> int:
    return sum(len(damaged) for damaged in log.quarantined)


def _durability(topic: TopicConfig) -> dict[str, Any]:
    if topic.unflush_threshold <= 0:
        return {"durability": "group_commit"}
    return {
        "durability": "threshold",
        "unflush_threshold": topic.unflush_threshold,
        "unflush_interval_ms": topic.unflush_interval_ms,
    }


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
