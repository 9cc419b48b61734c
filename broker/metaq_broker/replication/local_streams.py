"""All streams of this broker, as ``log.streams.stream.Streams``: its partitions, and streams that were added."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.folders import parse_folder_name
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.streams.epochs import StreamEpochs, begun, check_epochs, kept, write_epochs
from metaq_broker.log.streams.stream import Epochs, OnDurable, Origin, Stream, StreamFacts, StreamRefused
from metaq_broker.replication.local import CopyRefused, LocalPartitions
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.replication.partition_stream import PartitionStream, RemoveBefore
from metaq_broker.replication.peer import StoredRange

_LOG: Final = logging.getLogger(__name__)


class OwnStream(Stream, Protocol):
    """A stream other than a partition; there is one of its kind in a broker."""

    def tail(self) -> int:
        """Return ``StreamFacts.tail`` (blocking)."""

    async def begin_copy(self, origin: Origin) -> None:
        """Let the copy be one of ``origin``, or begin again there. Raises ``StreamRefused``."""

    def lead(self, on_durable: Callable[[int], None]) -> None: ...

    def fence(self, reason: str) -> None: ...


class LocalStreams:
    """``epochs`` are those that were read from the data folder; ``remove_before`` removes old segments."""

    def __init__(
        self,
        local: LocalPartitions,
        commit: PairedCommit,
        remove_before: RemoveBefore,
        epochs: Mapping[str, StreamEpochs],
        others: Sequence[OwnStream] = (),
    ) -> None:
        self._local, self._commit, self._remove_before = local, commit, remove_before
        self._files: Files = local.files
        self._data_path = Path(local.engine.config.system.data_path)
        self._epochs = dict(epochs)
        self._others = {each.name: each for each in others}
        self._partitions: dict[PartitionLog, PartitionStream] = {}
        self._writing = asyncio.Lock()

    # ---- finding

    def all(self) -> list[Stream]:
        """Return the partitions in order, then the others."""
        logs = list(self._local.engine.stores.logs())
        known = self._partitions
        self._partitions = {log: known.get(log) or self._of(log) for log in logs}
        return [*self._partitions.values(), *self._others.values()]

    def get(self, name: str) -> Stream | None:
        if name in self._others:
            return self._others[name]
        try:
            log = self._local.engine.stores.get(*parse_folder_name(name))
        except (ValueError, KeyError):
            return None
        return None if log is None else self._partitions.setdefault(log, self._of(log))

    def _of(self, log: PartitionLog) -> PartitionStream:
        return PartitionStream(self._local, self._commit, log, self._remove_before)

    def epochs_of(self, origin: Origin) -> Epochs:
        """Return the recorded epochs of a stream of this broker."""
        found = self._epochs.get(origin.name)
        known = found is not None and found.incarnation == origin.incarnation
        return found.epochs if found is not None and known else ()

    def facts(self) -> dict[str, StreamFacts]:
        """Return all streams whose incarnation is durable (blocking: reads their tails). Raises ``StreamRefused``."""
        found = {}
        for stream in self.all():
            origin = stream.origin
            if origin is not None:
                assert isinstance(stream, PartitionStream) or stream.name in self._others
                tail = stream.tail() if isinstance(stream, PartitionStream) else self._others[stream.name].tail()
                facts = StreamFacts(origin, stream.durable_end, self.epochs_of(origin), tail)
                found[stream.name] = facts
        return found

    # ---- a follower

    async def open_copy(self, origin: Origin) -> Stream:
        """Return the copy of a stream, created if necessary; see ``Streams.open_copy``."""
        other = self._others.get(origin.name)
        if other is not None:
            await other.begin_copy(origin)
            return other
        try:
            return self._of_log(await self._open_partition(origin))
        except (CopyRefused, ValueError) as refused:
            raise StreamRefused(origin.name, str(refused)) from refused

    def _of_log(self, log: PartitionLog) -> PartitionStream:
        return self._partitions.setdefault(log, self._of(log))

    async def _open_partition(self, origin: Origin) -> PartitionLog:
        key = parse_folder_name(origin.name)
        log = self._local.find(key)
        if log is not None:
            await self._local.durable(log)
            if log.incarnation not in (None, origin.incarnation):
                raise CopyRefused(f"its incarnation is {log.incarnation} here, {origin.incarnation} at the leader")
            if log.incarnation is not None and log.end_offset >= origin.start:
                return log
            await self._local.remove(key)  # it is empty, or the leader has removed all of it
        stored_range = StoredRange(origin.start, origin.start, origin.incarnation)
        return await self._local.make(key, stored_range, origin.ordinal)

    async def adopt_epochs(self, epochs: Mapping[str, Epochs]) -> None:
        """Take over a leader's epochs of these streams; see ``Streams.adopt_epochs``."""
        changed = dict(self._epochs)
        for name, each in epochs.items():
            stream = self.get(name)
            origin = None if stream is None else stream.origin
            if origin is None:
                raise StreamRefused(name, "its epochs cannot be recorded: there is no such stream here")
            try:
                check_epochs(name, each)
            except ValueError as fault:
                raise StreamRefused(name, str(fault)) from fault
            changed[name] = StreamEpochs(origin.incarnation, kept(each, origin.start))
        await self._record(changed)

    # ---- a leader

    async def begin_epoch(self, epoch: int) -> None:
        """Record for every stream that ``epoch`` begins at its end; see ``Streams.begin_epoch``."""
        changed = {}
        for stream in self.all():
            origin = stream.origin
            if origin is not None:
                epochs = begun(kept(self.epochs_of(origin), origin.start), epoch, stream.end)
                changed[stream.name] = StreamEpochs(origin.incarnation, epochs)
        await self._record(changed)
        _LOG.info("epoch begun", extra={"fields": {"epoch": epoch, "streams": len(changed)}})

    async def _record(self, changed: Mapping[str, StreamEpochs]) -> None:
        async with self._writing:
            if changed == self._epochs:
                return
            try:
                await asyncio.to_thread(write_epochs, self._files, self._data_path, changed)
            except OSError as error:
                raise StreamRefused(next(iter(changed), "-"), f"epochs cannot be recorded: {error}") from error
            self._epochs = dict(changed)

    def lead(self, on_durable: OnDurable) -> None:
        """From now on syncs wait for ``confirm``; see ``Streams.lead``."""
        self._commit.send_missing = lambda log, job: on_durable(log.directory.name, job.end)
        for name, stream in self._others.items():
            stream.lead(lambda end, name=name: on_durable(name, end))  # type: ignore[misc]

    def refuse_waiting(self, reason: str) -> None:
        """Refuse the puts that wait for ``confirm``."""
        self._commit.give_up(reason)

    def fence(self, reason: str) -> None:
        """Refuse everything that waits for ``confirm``, now and from now on."""
        for stream in self._others.values():
            stream.fence(reason)
        self._commit.fence(reason)
