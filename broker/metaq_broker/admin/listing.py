"""Commands that only look: ``status``, ``topics``, ``partitions``. Names in the results are part of the interface."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import metaq
from metaq_broker.admin.arguments import Arguments
from metaq_broker.admin.messages import REFUSED, CommandRefused, Result
from metaq_broker.admin.services import BrokerParts
from metaq_broker.config.configuration import TopicSettings
from metaq_broker.storage.losses import Loss
from metaq_broker.storage.partition_log import PartitionLog

ROWS_A_TURN: Final = 256
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
            "lost": [_loss(*each) for each in self._stores.losses()],
        }

    async def _zookeeper(self) -> dict[str, str] | None:
        registration = self._parts.registration()
        if registration is None:
            return None
        standing, reason = await registration.look()
        return {"address": str(registration.address), "state": standing.value, "reason": reason}

    def _durability(self) -> dict[str, Any]:
        config = self._engine.config
        usual = _durability(config.system)
        others = {name: mode for name, topic in config.topics.items() if (mode := _durability(topic)) != usual}
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
        """List the topics that are configured or stored."""
        arguments.end()
        config = self._engine.config
        stored = {topic: list(logs) for topic, logs in groupby(self._stores.logs(), lambda log: log.topic)}
        next_runs = {plan.topic: plan.next_ms for plan in self._parts.retention.plan()}
        return {
            "topics": [
                self._topic(name, stored.get(name, [])) | {"next_retention_ms": next_runs.get(name)}
                for name in sorted({*config.topics, *stored})
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
            if number % ROWS_A_TURN == 0:
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


def _durability(topic: TopicSettings) -> dict[str, Any]:
    if topic.unflush_threshold <= 0:
        return {"durability": "group_commit"}
    return {
        "durability": "threshold",
        "unflush_threshold": topic.unflush_threshold,
        "unflush_interval_ms": topic.unflush_interval_ms,
    }


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
