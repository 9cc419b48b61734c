"""What a consumer shows of its part in the group, the same for programs with threads and for asyncio."""

from __future__ import annotations

from typing import Generic

from metaq.client.groups.core import ConsumerCore
from metaq.client.groups.deliveries import D
from metaq.errors import PartitionLost
from metaq.model import TopicPartition


class GroupMember(Generic[D]):
    """A member of a group; how messages come to it is up to its subclasses."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        self._core, self._state, self._options = core, core.state, core.options
        self._handed: list[D] = []
        self._stopped = False

    @property
    def consumer_id(self) -> str:
        """The id in the group, as other programs see it."""
        return self._core.consumer_id

    @property
    def generation(self) -> int:
        """Counts the assignments that brought partitions."""
        return self._state.generation

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now, sorted."""
        with self._state.lock:
            return sorted(self._state.partitions)

    @property
    def paused(self) -> str | None:
        """Why nothing is handed out at the moment; ``None``: it is."""
        return self._state.paused

    def position(self, where: TopicPartition) -> int | None:
        """Return the offset before which everything is settled; ``None`` for a partition of somebody else."""
        return self._core.positions().get(where)

    def _seek(self, where: TopicPartition, offset: int) -> None:
        with self._state.lock:
            partition = self._state.partitions.get(where)
            if partition is None:
                raise PartitionLost(str(where), offset, self.generation)
            partition.seek(offset)
            self._state.notify()

    # what was handed out

    def _take_buffered(self, limit: int) -> list[D]:
        """Hand out what is buffered of one partition, much faster than one by one; nothing if the program filters."""
        if self._options.where is not None or self._stopped:
            return []
        found = self._state.take_buffered(self._core.clock.monotonic(), limit)
        self._handed += found
        return found

    def _is_wanted(self, delivery: D) -> bool:
        """Whether the program's own filter takes a message; if the filter raises, the message is handed out again."""
        if self._options.where is None:
            return True
        try:
            return bool(self._options.where(delivery))
        except BaseException:
            self._core.refused(delivery)
            raise

    def _settle_handed(self) -> None:
        handed, self._handed = self._handed, []
        if handed:
            self._state.acknowledge_all(handed)
