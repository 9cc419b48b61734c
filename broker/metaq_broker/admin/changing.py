"""Commands that change something: partitions, transactions, the configuration, the broker's life."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Final

from metaq.model import TransactionId, parse_transaction_id
from metaq_broker.admin.arguments import Arguments
from metaq_broker.admin.messages import MALFORMED, REFUSED, CommandRefused, Result
from metaq_broker.admin.reload import ReloadRefused
from metaq_broker.admin.services import BrokerParts
from metaq_broker.engine.outcomes import Refusal
from metaq_broker.replication.roles import PromotionRefused
from metaq_broker.storage.report import RecoveryReport
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
    """``retention``, ``reload``, ``promote`` and ``shutdown``."""

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
            for each in await self._parts.retention.run_now(topic)
        ]
        return {"removed": rows}

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
