"""The public view of a consumer's membership, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic

from metaq.client.groups.core import ConsumerCore
from metaq.client.groups.deliveries import D
from metaq.client.groups.in_hand import MessageBlock, Span
from metaq.errors import PartitionLost
from metaq.model import TopicPartition
from metaq.net.forks import forked_text


class GroupMember(Generic[D]):
    """A member of a group; subclasses fetch the messages."""

    def __init__(self, core: ConsumerCore[D]) -> None:
        self._core, self._state, self._options = core, core.state, core.options
        self._handed: list[Span] = []
        self._handed_before = 0
        """How many delivered messages precede the current call."""
        self._is_calling = False
        """Whether a call takes messages, or has taken some that the program may not have received."""
        self._streamed: MessageBlock[D] | None = None
        self._streamed_since = 0  # version of the state
        self._streamed_until_s = 0.0
        self._is_handled = False
        """Whether taken messages are passed to a handler."""
        self._pending: Exception | None = None
        """An error of a call that returned messages anyway; the next call raises it."""
        self._stopped = self._closed = False
        self._has_left = False
        """Whether the consumer is closed and the callbacks running meanwhile have returned."""
        self._closed_text = "the consumer is closed"

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._state.partitions)} partitions"
        return f"<{type(self).__name__} {self._core.consumer_id!r} of {', '.join(self._options.topics)}: {state}>"

    def stop(self) -> None:
        """Make the iteration, or ``run``, end after the current message."""
        self._stopped = True
        with self._state.lock:
            self._state.notify()

    def _forked(self) -> None:
        """In a child process: the parent continues to read; the child cannot."""
        self._closed = self._stopped = self._has_left = True
        self._closed_text = forked_text("the consumer")
        self._state.forked()

    def _require_own(self) -> None:
        """Raise if the consumer has left its group, or belongs to the parent process."""
        if self._has_left:
            raise ValueError(self._closed_text)

    @property
    def consumer_id(self) -> str:
        """The consumer's id in the group, visible to other members."""
        return self._core.consumer_id

    @property
    def generation(self) -> int:
        """Number of assignments that added partitions."""
        return self._state.generation

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, sorted."""
        with self._state.lock:
            return sorted(where for where, one in self._state.partitions.items() if not one.suspended)

    @property
    def paused(self) -> str | None:
        """Why nothing is delivered at the moment; ``None`` while messages are delivered."""
        return self._state.paused

    def position(self, where: TopicPartition) -> int | None:
        """Return the offset before which everything is settled; ``None`` for a partition of another consumer."""
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

    # delivered messages

    def _note_handed(self, delivery: D) -> None:
        self._handed.append(Span(delivery, delivery, 1))

    def _take_many(self, count_max: int) -> list[D]:
        """Take buffered messages of one partition, much faster than one by one; none if the program filters."""
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
        """Have the messages of an interrupted call delivered again, before others of their partitions."""
        if self._is_calling:
            self._is_calling, self._streamed = False, None
            del self._handed[self._handed_before :]
            self._state.take_back()

    def _broken_off(self, error: BaseException) -> list[D]:
        """Return the messages of a call that failed with ``error``; the next call raises it.

        They must reach the program, else the next call would settle them unseen. If the call is interrupted or
        cancelled, or has no messages, it raises ``error`` itself, and the next one delivers its messages.
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

    def _begin_stream(self) -> MessageBlock[D] | None:
        """Return messages after the delivered one, for an iteration to take one by one without a lock.

        The iteration may continue while the version of the state is ``_streamed_since``, and until
        ``_streamed_until_s``, and applies the program's own filter to each message. ``None``: there are none.
        """
        state = self._state
        if len(self._handed) != 1 or not self._options.auto_ack:
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
        """Return to delivery one by one: the last message of the iteration is in hand.

        The next call settles it, unless a handler has it, which may refuse it.
        """
        block = self._streamed
        if block is not None:
            last = block.messages[block.taken - 1]
            if not self._is_handled:
                self._note_handed(last)  # first: an interrupt may occur anywhere
            self._state.end_stream(last.where)
            self._streamed = None

    def _roll_back(self, partitions: Collection[TopicPartition] | None) -> int:
        self._require_own()
        self._end_stream()
        places = list(self._state.partitions) if partitions is None else partitions
        self._handed = [span for span in self._handed if span.first.where not in places]
        return self._state.roll_back(places, self._core.clock.monotonic())

    def _is_wanted(self, delivery: D) -> bool:
        """Whether the program's filter accepts a message; if the filter raises, the message is delivered again."""
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
            self._handed = []  # last: an interrupt may occur anywhere
