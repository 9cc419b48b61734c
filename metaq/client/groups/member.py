"""What a consumer shows of its part in the group, the same for programs with threads and for asyncio."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic

from metaq.client.forks import forked_text
from metaq.client.groups.core import ConsumerCore
from metaq.client.groups.deliveries import D
from metaq.client.groups.in_hand import Block, Span
from metaq.errors import PartitionLost
from metaq.model import TopicPartition


class GroupMember(Generic[D]):
    """A member of a group; how messages come to it is up to its subclasses."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        self._core, self._state, self._options = core, core.state, core.options
        self._handed: list[Span] = []
        self._handed_before = 0
        """How many of these were handed out before the call that is under way."""
        self._is_calling = False
        """Whether a call takes messages, or has taken them, which the program may not have seen."""
        self._streamed: Block[D] | None = None
        self._streamed_since = 0  # version of the state
        self._streamed_until_s = 0.0
        self._is_handled = False
        """Whether what is taken is given to a handler."""
        self._pending: Exception | None = None
        """What a call ran into that returned something all the same; the next one raises it."""
        self._stopped = self._closed = False
        self._has_left = False
        """Whether it is closed, and the program's functions that are called meanwhile have returned."""
        self._closed_text = "the consumer is closed"

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._state.partitions)} partitions"
        return f"<{type(self).__name__} {self._core.consumer_id!r} of {', '.join(self._options.topics)}: {state}>"

    def stop(self) -> None:
        """Have the iteration, or ``run``, end behind the message in hand."""
        self._stopped = True
        with self._state.lock:
            self._state.notify()

    def _forked(self) -> None:
        """In a child process: the parent goes on reading, this process cannot."""
        self._closed = self._stopped = self._has_left = True
        self._closed_text = forked_text("the consumer")
        self._state.forked()

    def _require_own(self) -> None:
        """Refuse what would change the position of a consumer that has left its group, or is the parent's."""
        if self._has_left:
            raise ValueError(self._closed_text)

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
            return sorted(where for where, one in self._state.partitions.items() if not one.suspended)

    @property
    def paused(self) -> str | None:
        """Why nothing is handed out at the moment; ``None``: it is."""
        return self._state.paused

    def position(self, where: TopicPartition) -> int | None:
        """Return the offset before which everything is settled; ``None`` for a partition of somebody else."""
        return self._core.positions().get(where)

    def _seek(self, where: TopicPartition, offset: int) -> None:
        self._require_own()
        self._end_stream()
        with self._state.lock:
            partition = self._state.partitions.get(where)
            if partition is None:
                raise PartitionLost(str(where), offset, self.generation)
            partition.seek(offset)
            self._state.notify()

    # what was handed out

    def _note_handed(self, delivery: D) -> None:
        self._handed.append(Span(delivery, delivery, 1))

    def _take_many(self, count_max: int) -> list[D]:
        """Hand out what is buffered of one partition, much faster than one by one; nothing if the program filters."""
        if self._options.where is not None or self._stopped:
            return []
        found = self._state.take_many(count_max, self._core.clock.monotonic())
        if found:
            self._handed.append(Span(found[0], found[-1], len(found)))
        return found

    def _begin_call(self) -> None:
        self._handed_before = len(self._handed)
        self._state.begin_call()
        self._is_calling = True

    def _take_back(self) -> None:
        """Have what the interrupted call had taken handed out again, before anything else of its partitions."""
        if self._is_calling:
            self._is_calling, self._streamed = False, None
            del self._handed[self._handed_before :]
            self._state.take_back()

    def _broken_off(self, error: BaseException) -> list[D]:
        """Return what a call has taken that runs into ``error``; the next one raises it.

        It has to reach the program, or else it would be settled unseen by the next call. If the call is interrupted,
        or cancelled, or has nothing, it raises ``error`` itself, and the next one hands out what it had.
        """
        if self._is_calling and isinstance(error, Exception):
            spans = self._handed[self._handed_before :]
            if found := [one for span in spans for one in self._state.within(span)]:
                self._pending = error
                return found
        self._take_back()
        raise error

    def _raise_pending(self) -> None:
        error, self._pending = self._pending, None
        if error is not None:
            raise error

    def _begin_stream(self, *, filters: bool = False) -> Block[D] | None:
        """Return messages behind the one that was handed out, for an iteration to take one by one without a lock.

        It may go on as long as the version of the state is ``_streamed_since``, and until ``_streamed_until_s``.
        ``None``: ``_next`` has to be asked.
        ``filters``: the caller asks the program's own filter of each message.
        """
        state = self._state
        if len(self._handed) != 1 or not self._options.auto_ack or not (filters or self._options.where is None):
            return None
        with state.lock:
            if self._stopped or state.changes or state.failure is not None:
                return None
            where = self._handed[0].last.where
            block = state.stream(self._handed[0].last)
            if block is not None:
                self._handed.clear()
                self._streamed, self._streamed_since = block, state.version
                self._streamed_until_s = state.until_s(where)
            return block

    def _end_stream(self) -> None:
        """Hand out one by one again: the last message that an iteration took is in hand.

        It is settled by the next call, unless a handler has it, which may refuse it.
        """
        block = self._streamed
        if block is not None:
            last = block.messages[block.taken - 1]
            if not self._is_handled:
                self._note_handed(last)  # first: this may be interrupted anywhere
            self._state.end_stream(last.where)
            self._streamed = None

    def _roll_back(self, partitions: Collection[TopicPartition] | None) -> int:
        self._require_own()
        self._end_stream()
        places = list(self._state.partitions) if partitions is None else partitions
        self._handed = [span for span in self._handed if span.first.where not in places]
        return self._state.roll_back(places, self._core.clock.monotonic())

    def _is_wanted(self, delivery: D) -> bool:
        """Whether the program's own filter takes a message; if the filter raises, the message is handed out again."""
        if self._options.where is None:
            return True
        try:
            return bool(self._options.where(delivery))
        except Exception:
            self._core.refused(delivery)
            raise

    def _settle_handed(self) -> None:
        self._end_stream()
        if self._handed:
            self._state.acknowledge_spans(self._handed)
            self._handed = []  # behind: this may be interrupted anywhere
