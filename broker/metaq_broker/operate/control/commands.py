"""The control commands: what operators can see of a running broker, and change."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
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
from metaq_broker.operate.control.messages import MALFORMED, REFUSED, Arguments, CommandRefused, Result
from metaq_broker.operate.control.reload import ReloadRefused
from metaq_broker.operate.control.server import Command
from metaq_broker.operate.control.services import BrokerParts
from metaq_broker.replication.roles import PromotionRefused
from metaq_broker.transactions.outcomes import Outcome, TransactionRefused

_OUTCOMES: Final = {"commit": Outcome.COMMITTED, "rollback": Outcome.ROLLED_BACK, "complete": Outcome.COMPLETED}
_OUTCOME_WORDS: Final = {
    Outcome.COMMITTED: "committed",
    Outcome.ROLLED_BACK: "rolled_back",
    Outcome.COMPLETED: "completed",
}


class PartitionCommands:
    """``close``, ``open``, ``delete``, ``move``, ``reopen`` and ``acknowledge``."""

    def __init__(self, parts: BrokerParts) -> None:
        self._maintenance = parts.maintenance

    async def close(self, arguments: Arguments) -> Result:
        """Refuse puts and gets on partitions."""
        topic, indexes = arguments.text("topic"), arguments.indexes()
        arguments.end()
        self._maintenance.close(topic, indexes)
        return {"topic": topic, "closed": list(indexes)}

    async def open(self, arguments: Arguments) -> Result:
        """Undo ``close``."""
        topic, indexes = arguments.text("topic"), arguments.indexes()
        arguments.end()
        self._maintenance.open(topic, indexes)
        return {"topic": topic, "opened": list(indexes)}

    async def delete(self, arguments: Arguments) -> Result:
        """Remove partitions from the disk."""
        topic, indexes, force = arguments.text("topic"), arguments.indexes(), arguments.flag("force")
        arguments.end()
        return {"topic": topic, "deleted": await self._maintenance.delete(topic, indexes, force=force)}

    async def move(self, arguments: Arguments) -> Result:
        """Give partitions other indexes."""
        topic, indexes, by = arguments.text("topic"), arguments.indexes(), arguments.number("offset")
        arguments.end()
        moved = await self._maintenance.move(topic, indexes, by)
        return {"topic": topic, "moved": [list(pair) for pair in moved]}

    async def reopen(self, arguments: Arguments) -> Result:
        """Recover a partition that takes no messages."""
        topic, index = arguments.text("topic"), arguments.number("index", 0)
        arguments.end()
        report = await self._maintenance.reopen(topic, index)
        return {"topic": topic, "index": index, **_recovered(report)}

    async def acknowledge(self, arguments: Arguments) -> Result:
        """Take note that an operator has seen what partitions lost."""
        topic, indexes = arguments.text("topic"), arguments.indexes()
        arguments.end()
        return {"topic": topic, "acknowledged": await self._maintenance.acknowledge(topic, indexes)}


def _recovered(report: RecoveryReport) -> dict[str, Any]:
    return {
        "bytes_cut": report.bytes_cut,
        "cut_at": report.cut_at,
        "bytes_quarantined": report.bytes_quarantined,
        "warnings": list(report.warnings()),
    }


class TransactionCommandsByHand:
    """``transactions`` and ``transaction``: what operators may do about prepared transactions."""

    def __init__(self, parts: BrokerParts) -> None:
        self._manager = parts.transactions
        self._describe = parts.describe

    async def transactions(self, arguments: Arguments) -> Result:
        """List prepared transactions, and those that were ended by hand and whose coordinator does not know yet."""
        arguments.end()
        prepared = [
            {
                "key": str(each.key),
                "age_ms": each.age_ms,
                "messages": each.messages,
                "bytes": each.byte_count,
                "partitions": [{"topic": topic, "index": index} for topic, index in each.partition_keys],
            }
            for each in self._manager.prepared()
        ]
        ended = [{"key": str(key), "outcome": _OUTCOME_WORDS[outcome]} for key, outcome in self._manager.outcomes()]
        return {"prepared": prepared, "ended_by_hand": ended}

    async def transaction(self, arguments: Arguments) -> Result:
        """End a prepared transaction, or forget one that was ended so."""
        action, key = arguments.text("action"), _key(arguments.text("key"))
        arguments.end()
        try:
            if action == "forget":
                return self._forget(key)
            if action == "accept":
                self._manager.accept_missing(key)
                return {"key": str(key), "outcome": "accepted"}
            await self._end(key, action)
        except TransactionRefused as refused:
            raise CommandRefused(REFUSED, self._describe(refused.refusal)) from refused
        return {"key": str(key), "outcome": _OUTCOME_WORDS[_OUTCOMES[action]]}

    async def _end(self, key: TransactionId, action: str) -> None:
        if action not in _OUTCOMES:
            allowed = f"{', '.join(_OUTCOMES)}, accept or forget"
            raise CommandRefused(MALFORMED, f"action {action[:80]!r}: expected {allowed}")
        ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._manager.end_heuristically(key, _OUTCOMES[action], ended.set_result)
        refusal = await ended
        if refusal is not None:
            raise TransactionRefused(refusal)

    def _forget(self, key: TransactionId) -> Result:
        known = [str(each) for each, _ in self._manager.outcomes()]
        if str(key) not in known:
            raise CommandRefused(REFUSED, f"nothing is remembered of transaction {key}")
        self._manager.forget(key)
        return {"key": str(key), "outcome": "forgotten"}


def _key(text: str) -> TransactionId:
    try:
        return parse_transaction_id(text)
    except ValueError as error:
        raise CommandRefused(MALFORMED, str(error)) from None


class BrokerCommands:
    """``retention``, ``clock``, ``reload``, ``promote`` and ``shutdown``."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    async def retention(self, arguments: Arguments) -> Result:
        """Remove old segments now, of a topic or of all."""
        topic = arguments.optional_text("topic")
        arguments.end()
        engine = self._parts.engine
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
            for each in await self._run_retention(topic)
        ]
        return {"removed": rows}

    async def _run_retention(self, topic: str | None) -> list[Retired]:
        try:
            return await self._parts.retention.run_now(topic)
        except RetentionFailed as refused:
            raise CommandRefused(REFUSED, str(refused)) from refused

    async def clock(self, arguments: Arguments) -> Result:
        """Believe the machine's clock, which has jumped."""
        arguments.end()
        clock = self._parts.engine.id_clock
        if not clock.accept():
            raise CommandRefused(REFUSED, clock.fault or "the clock is trusted: there is nothing to accept")
        return {"accepted": True}

    async def reload(self, arguments: Arguments) -> Result:
        """Read the configuration again."""
        arguments.end()
        try:
            report = await self._parts.reloader.reload()
        except ReloadRefused as refused:
            raise CommandRefused(REFUSED, f"{refused}; nothing has changed") from refused
        return dataclasses.asdict(report)

    async def promote(self, arguments: Arguments) -> Result:
        """Make this slave a master."""
        force = arguments.flag("force")
        arguments.end()
        try:
            await self._parts.replication.promote(force=force)
        except PromotionRefused as refused:
            raise CommandRefused(REFUSED, str(refused)) from refused
        return {"promoted": True}

    async def shutdown(self, arguments: Arguments) -> Result:
        """Stop as SIGTERM does. The reply comes first; the connection is closed when the broker has stopped."""
        arguments.end()
        self._parts.stop()
        return {"stopping": True}


ROWS_PER_QUANTUM: Final = 256
"""Partitions that are listed before clients get their turn."""


class Listing:
    """The commands of this module, for one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._stores = parts.engine.stores

    async def status(self, arguments: Arguments) -> Result:
        """Say how the broker is."""
        arguments.end()
        await self._parts.guard.check()  # so that the free space is today's
        engine, reloader = self._engine, self._parts.reloader
        logs = list(self._stores.logs())
        return {
            "version": metaq.__version__,
            "pid": os.getpid(),
            "uptime_s": engine.statistics.uptime_s,
            "broker_id": engine.config.system.broker_id,
            "address": str(self._parts.address),
            "metrics_address": _text_or_none(self._parts.metrics_address),
            "data": [
                {"path": folder.path, "free_bytes": folder.free_bytes, "puts_refused": folder.refusal}
                for folder in self._parts.guard.folders()
            ],
            "config": {
                "file": _text_or_none(reloader.file),
                "checksum": engine.config.checksum,
                "loaded_ms": reloader.loaded_ms,
                "restart_needed": list(reloader.restart_needed),
            },
            "zookeeper": await self._zookeeper(),
            "replication": self._parts.replication.facts(),
            "durability": self._durability(),
            "connections": engine.statistics.connections,
            "topics": len({log.topic for log in logs}),
            "partitions": len(logs),
            "messages": sum(log.message_count for log in logs),
            "bytes": sum(log.end_offset - log.start_offset for log in logs),
            "transactions": self._transactions(),
            "stuck_commits": self._parts.transactions.stuck_commits(),
            "closed": [{"topic": topic, "index": index} for topic, index in engine.closed_partitions()],
            "read_only": [{**_name(log), "reason": log.failure} for log in logs if log.failure is not None],
            "not_served": [
                {"topic": topic, "index": index, "reason": reason} for topic, index, reason in self._stores.refused()
            ],
            "quarantined": [{**_name(log), "bytes": _quarantined(log)} for log in logs if log.quarantined],
            "clock": self._engine.id_clock.doubt(),
            "lost": [_loss(*each) for each in self._stores.losses()],
        }

    async def _zookeeper(self) -> dict[str, str] | None:
        registration = self._parts.registration()
        if registration is None:
            return None
        state, reason = await registration.look()
        return {"address": str(registration.address), "state": state.value, "reason": reason}

    def _durability(self) -> dict[str, Any]:
        config = self._engine.config
        usual = _durability(config.system)
        others = {
            name: mode
            for name, topic in config.topics.items()
            if (mode := _durability(topic)) != usual and not config.hides(name)
        }
        return {**usual, "topics": others}

    def _transactions(self) -> dict[str, int]:
        manager = self._parts.transactions
        return {
            "open": manager.open_count,
            "prepared": len(manager.prepared()),
            "committed": manager.counters.tx_commit,
            "rolled_back": manager.counters.tx_rollback,
            "journal_bytes": manager.journal_bytes,
        }

    async def topics(self, arguments: Arguments) -> Result:
        """List the topics that are configured or stored; of those that RocketMQ keeps for itself the stored ones."""
        arguments.end()
        config = self._engine.config
        stored = {topic: list(logs) for topic, logs in groupby(self._stores.logs(), lambda log: log.topic)}
        next_runs = {plan.topic: plan.next_ms for plan in self._parts.retention.plan()}
        return {
            "topics": [
                self._topic(name, stored.get(name, [])) | {"next_retention_ms": next_runs.get(name)}
                for name in sorted({*(name for name in config.topics if not config.hides(name)), *stored})
            ]
        }

    def _topic(self, name: str, logs: list[PartitionLog]) -> dict[str, Any]:
        settings = self._engine.config.topic_settings(name)
        return {
            "topic": name,
            "accepted": self._engine.config.accepts(name),
            "num_partitions": settings.num_partitions,
            "partitions": len(logs),
            "messages": sum(log.message_count for log in logs),
            "bytes": sum(log.end_offset - log.start_offset for log in logs),
            **_durability(settings),
            "delete_policy": settings.delete_policy,
            "delete_when": settings.delete_when,
            "data_path": settings.data_path,
        }

    async def partitions(self, arguments: Arguments) -> Result:
        """List the partitions of a topic, or of all."""
        topic = arguments.optional_text("topic")
        arguments.end()
        rows: list[dict[str, Any]] = []
        logs = [log for log in self._stores.logs() if topic in (None, log.topic)]
        for number, log in enumerate(logs, 1):
            rows.append(self._partition(log))
            if number % ROWS_PER_QUANTUM == 0:
                await asyncio.sleep(0)
        rows += self._not_served(topic)
        if not rows and topic is not None and topic not in self._engine.config.topics:
            if self._engine.config.accepts(topic):
                raise CommandRefused(REFUSED, f"this broker has no topic {topic!r} yet; the first put makes it")
            raise CommandRefused(REFUSED, f"this broker has no topic {topic!r}")
        return {"partitions": sorted(rows, key=lambda row: (row["topic"], row["index"]))}

    def _partition(self, log: PartitionLog) -> dict[str, Any]:
        return {
            **_name(log),
            "start": log.start_offset,
            "end": log.end_offset,
            "readable_end": log.readable_end,
            "messages": log.message_count,
            "segments": log.segment_count,
            "bytes": log.end_offset - log.start_offset,
            "closed": self._engine.is_closed(log.topic, log.index),
            "failure": log.failure,
            "quarantined": [[damaged.start, damaged.end] for damaged in log.quarantined],
        }

    def _not_served(self, wanted: str | None) -> Iterator[dict[str, Any]]:
        for topic, index, reason in self._stores.refused():
            if wanted in (None, topic):
                closed = self._engine.is_closed(topic, index)
                yield {"topic": topic, "index": index, "closed": closed, "not_served": reason}


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


def control_commands(parts: BrokerParts) -> dict[str, Command]:
    """Return every command of a broker."""
    listing, partitions = Listing(parts), PartitionCommands(parts)
    transactions, broker = TransactionCommandsByHand(parts), BrokerCommands(parts)
    return {
        "status": listing.status,
        "topics": listing.topics,
        "partitions": listing.partitions,
        "close": partitions.close,
        "open": partitions.open,
        "delete": partitions.delete,
        "move": partitions.move,
        "reopen": partitions.reopen,
        "acknowledge": partitions.acknowledge,
        "transactions": transactions.transactions,
        "transaction": transactions.transaction,
        "retention": broker.retention,
        "clock": broker.clock,
        "reload": broker.reload,
        "promote": broker.promote,
        "shutdown": broker.shutdown,
    }
