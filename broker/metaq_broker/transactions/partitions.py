"""``TransactionStore`` on the engine: the only access of transactions to the partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from metaq.formats.frames import Frame
from metaq.formats.message_id import IdRange
from metaq_broker.log.engine.appends import Append, Terms
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.outcomes import DiskFull, Refusal, StorageFailed
from metaq_broker.transactions.interfaces import Unit
from metaq_broker.transactions.outcomes import TransactionRefused


class EngineStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, topic: str, partition: int) -> None:
        """Check that a message may be put, and create the partition's log, so that a commit cannot fail because it is
        missing.
        """
        log = self._engine.log_for_put(topic, partition)
        if isinstance(log, Refusal):
            raise TransactionRefused(log)
        if (reason := self.check_space([])) is not None:
            raise TransactionRefused(DiskFull(reason))
        if log.failure is not None:
            raise TransactionRefused(StorageFailed(f"partition {topic}-{partition} is read-only: {log.failure}"))

    def check_space(self, partition_keys: Iterable[tuple[str, int]]) -> str | None:
        space, config = self._engine.space, self._engine.config
        if self._engine.id_clock.fault is not None:
            return self._engine.id_clock.fault
        if not space.low:
            return None
        paths = [config.system.data_log_path, *(config.topic_settings(topic).data_path for topic, _ in partition_keys)]
        return next((reason for path in paths if (reason := space.refusal(path)) is not None), None)

    def log_end(self, topic: str, partition: int) -> int:
        log = self._engine.stores.get(topic, partition)
        return 0 if log is None else log.readable_end

    def next_ids(self, count: int) -> IdRange:
        return self._engine.reserve_ids(count)

    def append(self, units: Sequence[Unit], done: Callable[[StorageFailed | None], None]) -> None:
        block, *behind = map(attrgetter("frames"), units)
        outcome = self._engine.append(Append(*units[0].partition_key, block, Terms.COMMITTED, behind=behind), done)
        if isinstance(outcome, Refusal):
            done(outcome if isinstance(outcome, StorageFailed) else StorageFailed(str(outcome)))

    def scan(self, topic: str, partition: int, from_offset: int) -> Iterable[Frame]:
        log = self._engine.stores.get(topic, partition)
        return () if log is None else log.scan(from_offset)
