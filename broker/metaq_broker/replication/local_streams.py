"""All streams of this broker, as ``log.streams.stream.PairStreams``: its partitions, the journal, the state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from metaq_broker.background import begin_work
from metaq_broker.clock import Clock
from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.log.partitions.folders import parse_folder_name
from metaq_broker.log.partitions.log_store import KEYS_NAME
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.streams.epochs import StreamEpochs, begun, check_epochs, kept, write_epochs
from metaq_broker.log.streams.facts import Epochs, StreamFacts, StreamOrigin
from metaq_broker.log.streams.lost_found import FOLDER_NAME as LOST_FOUND
from metaq_broker.log.streams.lost_found import Intention, remove_kept
from metaq_broker.log.streams.stream import JOURNAL, STATE, Leader, PairStream, StreamRefused
from metaq_broker.log.sync.sync import SyncJob
from metaq_broker.replication.local import CopyRefused, LocalPartitions
from metaq_broker.replication.pair.streams import agreed_end
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.replication.partition_stream import PartitionStream, RemoveBefore
from metaq_broker.replication.peer import StoredRange

_LOG: Final = logging.getLogger(__name__)

_UNKNOWN: Final = "0" * 32
"""The incarnation of a partition that could not be opened."""


class OwnStream(PairStream, Protocol):
    """A stream other than a partition: there is one of its kind in a broker, and it always exists."""

    @property
    def loss(self) -> str | None:
        """What was durable and is gone, one sentence; ``None`` if nothing."""

    @property
    def is_blank(self) -> bool:
        """Whether it has no record yet."""

    def prepare(self) -> None:
        """Give a stream without incarnation one, durably (blocking). Raises ``OSError``."""

    async def create(self, origin: StreamOrigin, time_ms: int) -> None:
        """Begin an empty copy, in place of what is there."""

    async def repair(self, intention: Intention) -> None:
        """Cut what is damaged, or torn, at the end: the leader sends it again."""

    async def set_aside(self, time_ms: int) -> None: ...

    async def cut(self, intention: Intention) -> None: ...

    async def settled(self) -> None:
        """Return when no write is in progress."""

    def lead(self, leader: Leader) -> None: ...

    def fence(self, reason: str) -> None: ...


class _PutAside(NamedTuple):
    """A stream that was moved to ``path``."""

    path: Path
    facts: StreamFacts


class LocalStreams:
    """``epochs`` were read from the data folder; ``remove_before`` removes old segments."""

    def __init__(
        self,
        local: LocalPartitions,
        commit: PairedCommit,
        clock: Clock,
        remove_before: RemoveBefore,
        epochs: Mapping[str, StreamEpochs],
        others: Sequence[OwnStream] = (),
    ) -> None:
        self._local, self._commit, self._clock, self._remove_before = local, commit, clock, remove_before
        self._data_path = Path(local.engine.config.system.data_path)
        self._epochs = dict(epochs)
        self._written_epochs = dict(epochs)
        self._others = {each.name: each for each in others}
        self._partitions: dict[PartitionLog, PartitionStream] = {}
        self._reported: set[str] = set()
        self._leader: Leader | None = None
        self._unreported: dict[PartitionLog, None] = {}
        self._put_aside: dict[str, _PutAside] = {}
        self._writing = asyncio.Lock()
        self._recording: asyncio.Task[None] | None = None

    # ---- finding

    def all(self) -> list[PairStream]:
        """Return the partitions in order, then the others."""
        self._partitions = {log: self._of(log) for log in self._local.engine.stores.logs()}
        return [*self._partitions.values(), *self._others.values()]

    def get(self, name: str) -> PairStream | None:
        if name in self._others:
            return self._others[name]
        try:
            log = self._local.engine.stores.get(*parse_folder_name(name))
        except (ValueError, KeyError):
            return None
        return None if log is None else self._of(log)

    def _of(self, log: PartitionLog) -> PartitionStream:
        found = self._partitions.get(log)
        if found is None:
            found = self._partitions[log] = PartitionStream(self._local, self._commit, log, self._remove_before)
        return found

    def _existing(self, name: str) -> tuple[PairStream, StreamOrigin]:
        stream = self.get(name)
        if stream is None or (origin := stream.origin) is None:
            raise StreamRefused(name, "it does not exist here")
        return stream, origin

    def epochs(self, name: str) -> Epochs:
        """Return the epochs of a stream that exists.

        Raises:
            StreamRefused: It does not.
        """
        _, origin = self._existing(name)
        return self._recorded(origin)

    def facts(self) -> dict[str, StreamFacts]:
        """Return all streams that can be compared; see ``PairStreams.facts``. Raises ``StreamRefused``."""
        found = ((stream.name, self.facts_of(stream)) for stream in self.all())
        return {name: facts for name, facts in found if facts is not None}

    def facts_of(self, stream: PairStream) -> StreamFacts | None:
        """Return the facts of one stream; see ``PairStreams.facts_of``. Raises ``StreamRefused``."""
        origin = stream.origin
        if origin is None:
            return None
        damage = stream.own_damage if self._leader is None and isinstance(stream, PartitionStream) else None
        end = stream.durable_end if damage is None else damage.start
        return StreamFacts(origin, end, self._recorded(origin), stream.tail(end))

    def _recorded(self, origin: StreamOrigin) -> Epochs:
        found = self._epochs.get(origin.name)
        return kept(found.epochs, origin.start) if found is not None and found.incarnation == origin.incarnation else ()

    @property
    def is_blank(self) -> bool:
        """Whether no stream has a byte that a client or an operator has put there."""
        partitions = any(stream.end for stream in self.all() if isinstance(stream, PartitionStream))
        return not partitions and all(other.is_blank for other in self._others.values())

    def unfit(self) -> str | None:
        """Return what this member has lost, so that it should not lead while another one can; ``None`` if nothing.

        For a member that has just been opened.
        """
        stores = self._local.engine.stores
        for topic, index, loss in stores.losses():
            return f"partition {topic}-{index} has lost bytes [{loss.start}, {loss.end})"
        for topic, index, reason in stores.refused():
            return f"partition {topic}-{index} is not served: {reason}"
        for stream in self.all():
            if isinstance(stream, PartitionStream) and (damage := stream.own_damage) is not None:
                return f"partition {stream.name} has damaged bytes: {damage}"
        for other in self._others.values():
            if other.loss is not None:
                return other.loss
        return self._missing_stream()

    def _missing_stream(self) -> str | None:
        for name, recorded in self._epochs.items():
            found = self.get(name)
            origin = None if found is None else found.origin
            if origin is None or origin.incarnation != recorded.incarnation:
                return f"stream {name} of incarnation {recorded.incarnation} is gone"
        return None

    # ---- a follower

    async def cut(self, cuts: Mapping[str, int | None], epoch: int, master: str) -> None:
        """Cut streams, and keep what is cut in ``lost+found``; see ``PairStreams.cut``."""
        for name, end in cuts.items():
            try:
                if end is None:
                    await self._set_aside(name)
                else:
                    await self._cut(name, Intention(end, epoch, self._clock.now_ms(), master))
            except (MaintenanceRefused, OSError) as refused:
                raise StreamRefused(name, str(refused)) from refused
        if any(end is None for end in cuts.values()):
            await self._record()

    async def _cut(self, name: str, intention: Intention) -> None:
        other = self._others.get(name)
        if other is not None:
            await other.cut(intention)
        else:
            self._forget_keys()
            await self._local.maintenance.cut(*parse_folder_name(name), intention)

    async def _set_aside(self, name: str) -> None:
        time_ms, other = self._clock.now_ms(), self._others.get(name)
        stream, origin = self._existing(name)
        facts = None
        with contextlib.suppress(StreamRefused):  # its end cannot be read: it is kept
            facts = self.facts_of(stream)
        if other is not None:
            await other.set_aside(time_ms)
            folder = self._folder_of(other)
        else:
            topic, index = parse_folder_name(name)
            self._forget_keys()
            if stream.end == origin.start:  # there is nothing to keep
                await self._local.maintenance.delete(topic, [index], force=True)
            else:
                await self._local.maintenance.put_aside(topic, index, origin.incarnation, time_ms)
            folder = self._local.engine.stores.store_of(topic).data_path
        if facts is not None:
            path = folder / LOST_FOUND / name / f"{origin.incarnation}-{time_ms}"
            self._put_aside[name] = _PutAside(path, facts)
        fields = {"stream": name}
        _LOG.warning("stream moved to lost+found, the leader has another one or none", extra={"fields": fields})
        self._epochs.pop(name, None)

    def _folder_of(self, other: OwnStream) -> Path:
        system = self._local.engine.config.system
        return Path(system.data_log_path if other.name == JOURNAL else system.data_path)

    async def _drop_superseded(self, name: str, origin: StreamOrigin, epochs: Epochs) -> None:
        """Remove a stream from ``lost+found`` that fell behind: the leader has had all of it, and removed it."""
        aside = self._put_aside.pop(name, None)
        if aside is None or aside.facts.origin.incarnation != origin.incarnation or aside.facts.end > origin.start:
            return
        whole = StreamFacts(origin._replace(start=0), origin.start, epochs)
        mine = aside.facts._replace(origin=origin._replace(start=0))
        if agreed_end(mine, whole) == aside.facts.end:
            _LOG.info("the leader has removed what this copy had", extra={"fields": {"stream": name}})
            await asyncio.to_thread(remove_kept, self._local.files, aside.path)

    def _forget_keys(self) -> None:
        """Remove the index of RocketMQ's keys, before messages are replaced by others; it is made again (blocking)."""
        folder = self._data_path / KEYS_NAME
        for name in self._local.files.listdir(folder) if self._local.files.exists(folder) else ():
            self._local.files.unlink(folder / name)

    async def adopt(self, streams: Mapping[str, tuple[StreamOrigin, Epochs]]) -> None:
        """Create what does not exist, and replace the epochs of all; see ``PairStreams.adopt``.

        From the first byte on that is damaged here, a stream is cut: the leader has it, and sends it again.
        """
        for name, (origin, epochs) in streams.items():
            await self._heal(name)
            await self._create(origin)
            await self._drop_superseded(name, origin, epochs)
            try:
                check_epochs(name, epochs)
            except ValueError as fault:
                raise StreamRefused(name, str(fault)) from fault
            _, own = self._existing(name)
            self._epochs[name] = StreamEpochs(own.incarnation, kept(epochs, own.start))
        await self._record()

    async def _heal(self, name: str) -> None:
        stream, other = self.get(name), self._others.get(name)
        damage = stream.own_damage if isinstance(stream, PartitionStream) else None
        try:
            if other is not None:
                await other.repair(Intention(other.end, 0, self._clock.now_ms(), "-"))
            elif damage is not None:
                await self._cut(name, Intention(damage.start, 0, self._clock.now_ms(), "-"))
        except (MaintenanceRefused, OSError) as refused:
            raise StreamRefused(name, str(refused)) from refused

    async def _create(self, origin: StreamOrigin) -> None:
        """Create an empty copy, unless there is a stream of that incarnation."""
        other = self._others.get(origin.name)
        found = self.get(origin.name)
        here = None if found is None else found.origin
        if here is not None and here.incarnation == origin.incarnation:
            return
        if here is not None:
            here_and_there = f"incarnation {here.incarnation} is here, {origin.incarnation} at the leader"
            raise StreamRefused(origin.name, here_and_there)
        if other is not None:
            await other.create(origin, self._clock.now_ms())
            return
        stored_range = StoredRange(origin.start, origin.start, origin.incarnation)
        try:
            key = parse_folder_name(origin.name)
            if self._local.engine.stores.refusal(*key) is not None:  # it cannot be opened
                await self._local.maintenance.put_aside(*key, _UNKNOWN, self._clock.now_ms())
            if self._local.find(key) is not None:  # it was never synced, so nobody knows it
                await self._local.remove(key)
            await self._local.make(key, stored_range, origin.ordinal)
            store = self._local.engine.stores.store_of(key[0])
            await asyncio.to_thread(store.acknowledge, *key)  # what was lost here comes from the leader
        except (CopyRefused, MaintenanceRefused, OSError, ValueError) as refused:
            raise StreamRefused(origin.name, str(refused)) from refused

    async def _record_quietly(self) -> None:
        try:
            await self._record()
        except StreamRefused as refused:  # the next epoch's file will say it
            _LOG.warning("the epochs of a deleted stream are still recorded", extra={"fields": {"reason": refused}})

    async def _record(self) -> None:
        """Write the epochs of all streams, if they have changed."""
        async with self._writing:
            epochs = dict(self._epochs)
            if epochs == self._written_epochs:
                return
            try:
                await asyncio.to_thread(write_epochs, self._local.files, self._data_path, epochs)
            except OSError as error:
                raise StreamRefused("-", f"epochs cannot be recorded: {error}") from error
            self._written_epochs = epochs

    # ---- a leader

    async def begin_epoch(self, epoch: int) -> dict[str, int]:
        """Record for every stream that ``epoch`` begins at its end; see ``PairStreams.begin_epoch``.

        Blocks the loop for one write, so that nothing is appended meanwhile.
        """
        async with self._writing:
            for other in self._others.values():
                await other.settled()
                other.prepare()
            self._report_written()
            ends, epochs = {}, {}
            for stream in self.all():
                if (origin := stream.origin) is not None:
                    ends[stream.name] = end = stream.end
                    epochs[stream.name] = StreamEpochs(origin.incarnation, begun(self._recorded(origin), epoch, end))
            try:
                write_epochs(self._local.files, self._data_path, epochs)
            except OSError as error:
                raise StreamRefused(next(iter(ends), "-"), f"epoch {epoch} cannot be recorded: {error}") from error
            self._epochs, self._written_epochs = dict(epochs), epochs
        _LOG.info("epoch begun", extra={"fields": {"epoch": epoch, "streams": len(ends)}})
        return ends

    def lead(self, leader: Leader) -> None:
        """From now on syncs wait for ``confirm``; see ``PairStreams.lead``."""
        self._leader = leader
        self._reported = {stream.name for stream in self.all() if stream.origin is not None}
        for stream in self.all():
            if isinstance(stream, PartitionStream) and stream.own_damage is not None:  # ``facts`` said less
                leader.written(stream.name, stream.end)
                leader.synced(stream.name, stream.durable_end)
        self._commit.send_missing, self._commit.written = self._synced, self._written
        for other in self._others.values():
            other.lead(leader)

    def _written(self, log: PartitionLog) -> None:
        if log.name in self._reported:  # else its incarnation is not durable yet
            if not self._unreported:
                asyncio.get_running_loop().call_soon(self._report_written)
            self._unreported[log] = None

    def _report_written(self) -> None:
        """Report the appends of one iteration of the loop together."""
        unreported, self._unreported = self._unreported, {}
        for log in unreported:
            if self._leader is not None and log.name in self._reported:
                self._leader.written(log.name, log.end_offset)

    def _synced(self, log: PartitionLog, job: SyncJob) -> None:
        assert self._leader is not None
        stream = self._of(log)
        if stream.name not in self._reported and stream.origin is not None:
            self._reported.add(stream.name)
            self._leader.stream_added(stream)
        self._leader.synced(stream.name, job.end)

    def deleted(self, topic: str, index: int) -> None:
        """A leader's partition was deleted by an operator."""
        name = f"{topic}-{index}"
        if self._epochs.pop(name, None) is not None:  # or the next start would miss it
            self._recording = begin_work(self._record_quietly(), "epochs of a deleted stream")
        if self._leader is not None and name in self._reported:
            self._reported.discard(name)
            self._leader.stream_removed(name)

    def refuse_waiting(self, reason: str) -> None:
        """Refuse the puts that wait for ``confirm``."""
        self._commit.give_up(reason)

    def fence(self, reason: str) -> None:
        """Refuse everything that waits for ``confirm``, now and from now on."""
        for other in self._others.values():
            other.fence(reason)
        self._commit.fence(reason)

    def end(self, reason: str) -> None:
        """Refuse what waits for ``confirm``: nobody calls it any more. The state is closed later, and written then.

        Transactions first: a commit whose partition refuses would be tried again, and what is not readable is not found
        and appended a second time.
        """
        for other in self._others.values():
            if other.name != STATE:
                other.fence(reason)
        self._commit.fence(reason)
