"""A MetaQ partition that a consumer owns: when it fetches, and which messages it delivers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.backends.metaq.fetch import AtEnd, Moved, Run
from metaq.backends.metaq.filtered import Filtered
from metaq.backends.metaq.polls import PartitionRequest, Polled
from metaq.client.groups.deliveries import Delivery, Settler
from metaq.client.groups.owned import POLL_STEPS, Chunk, OffsetJump, Owned
from metaq.client.groups.runs import FetchedRuns
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import CorruptFrame
from metaq.model import TopicPartition


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How partitions are read. ``poll_max_s``: longest pause between two requests without new messages."""

    group: str
    fetch_bytes: int = 1 << 20
    poll_max_s: float = 1.0
    types: tuple[str, ...] = ()
    skip_corrupt: bool = False


class OwnedPartition(Owned[Delivery, PartitionRequest, Polled]):
    """A MetaQ partition. Not thread-safe."""

    def __init__(
        self,
        where: TopicPartition,
        start: GroupOffset,
        generation: int,
        settings: ReadSettings,
        settler: Settler,
        saved: GroupOffset | None = None,
    ) -> None:
        super().__init__(where, start, generation, settler, saved)
        self._settings = settings
        self._types = frozenset(settings.types)
        self._pause_s = 0.0
        self._restart(start.offset)

    def _restart(self, offset: int) -> None:
        self._fetched = offset
        self._runs = FetchedRuns(offset, skip_corrupt=self._settings.skip_corrupt)
        self._asked: PartitionRequest | None = None

    # fetching

    def request(self, now_s: float) -> PartitionRequest | None:
        if self.rests or self._asked is not None or self._runs.is_waiting or now_s < self._not_before:
            return None
        where, settings = self.where, self._settings
        max_bytes = self._share_of(settings.fetch_bytes)
        self._asked = PartitionRequest(
            where.topic, where.partition.index, self._fetched, max_bytes, settings.group, settings.types
        )
        return self._asked

    def next_request_s(self) -> float | None:
        waits = self.rests or self._asked is not None or self._runs.is_waiting
        return None if waits else self._not_before

    def fetched(self, request: PartitionRequest, outcome: Polled | None, now_s: float) -> OffsetJump | None:
        if request is not self._asked:
            return None  # rolled back meanwhile
        self._asked = None
        match outcome:
            case Run() | Filtered():
                self._runs.add(outcome)
                self._fetched = outcome.end if isinstance(outcome, Run) else outcome.next_offset
                self._pause_s = 0.0
            case Moved(offset) if offset != request.offset:
                self._runs.add(outcome)  # data fetched before is decoded first
                self._fetched = offset
                return OffsetJump(self.where, request.offset, offset)
            case CorruptFrame() | Moved() | AtEnd() | _:
                self._pause_s = min(self._settings.poll_max_s, self._pause_s + self._settings.poll_max_s / POLL_STEPS)
                self._not_before = now_s + self._pause_s
        return None

    # delivery

    def _decode(self) -> Chunk[Delivery] | None:
        chunk = self._runs.decode(self._epoch)
        if chunk is None or not self._types:
            return chunk
        return Chunk([one for one in chunk.messages if one.attribute in self._types], chunk.end)
