"""The interface between replication and everything that a pair of brokers replicates. No I/O.

A *stream* is a named, append-only sequence of bytes that begins at ``start`` and ends at ``end``: a partition, the
journal of transactions, the state of RocketMQ's clients. Its bytes are whole records (frames of a partition), stored in
files that begin at the same offsets on both brokers. ``read`` and ``append_copy`` carry them unchanged, so a copy has
the same files.

Three ends, each at most the next::

    confirmed_end      what clients may see, and what is acknowledged
    durable_end        durable on this broker's disk
    end                written

A follower waits for no other broker, so its ``confirmed_end`` is its ``durable_end``; it serves no clients. On a leader
a sync stays pending until ``confirm``: appends meanwhile go with the next one.

Source: docs/replication.md; docs/log-format.md, "A member of a pair".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from metaq.errors import MetaqError
from metaq.model import Buffer
from metaq_broker.log.streams.facts import Epochs, StreamFacts, StreamOrigin

JOURNAL: Final = "transactions"
"""Name of the stream of the transaction journal. A partition's is its folder's, ``TOPIC-INDEX``."""

STATE: Final = "rocketmq-state"
"""Name of the stream of the state of RocketMQ's clients."""


class StreamBytes(NamedTuple):
    """Whole records, at least one, from byte ``offset`` on, all in the file that begins at ``file_start``.

    ``lost_messages``: not records, but bytes that are damaged at the leader, and contained that many messages. A
    follower stores them quarantined, so that what follows them has its offsets.
    """

    offset: int
    file_start: int
    data: Buffer
    lost_messages: int | None = None

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class StreamRefused(MetaqError):
    """A stream cannot be read or changed; ``reason`` says why, for operators."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(name, reason)

    def __str__(self) -> str:
        return f"stream {self.name}: {self.reason}"


class StreamDamaged(StreamRefused):
    """Bytes at ``offset`` are damaged on this broker's disk."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, reason)
        self.offset = offset


TAIL_BYTES: Final = 4096
"""How many bytes before its end ``StreamFacts.tail`` covers, at most."""


class PairStream(Protocol):
    """One stream of this broker, for the event loop."""

    @property
    def name(self) -> str: ...

    @property
    def origin(self) -> StreamOrigin | None:
        """Return how a copy begins; ``None`` while the incarnation is not durable: then nothing may be sent."""

    @property
    def end(self) -> int: ...

    @property
    def durable_end(self) -> int: ...

    @property
    def confirmed_end(self) -> int: ...

    def read(self, offset: int, limit: int, bytes_max: int) -> StreamBytes:
        """Return written records of one file from ``offset`` on: about ``bytes_max`` bytes, at least one record.

        ``offset`` and ``limit`` are record boundaries, at most ``end``; the run ends at or before ``limit``. Records
        are checked, so damage is never sent. Blocks for one read of the disk.

        Raises:
            StreamDamaged: The bytes at ``offset`` are damaged here.
            StreamRefused: ``offset`` is outside the stream, or the disk fails.
        """

    def tail(self, end: int) -> int:
        """Return the CRC-32 of the last ``TAIL_BYTES`` before ``end``, or of all if there are fewer (blocking).

        For a comparison of two copies: damage is included, not refused.

        Raises:
            StreamRefused: They cannot be read.
        """

    def append_copy(self, run: StreamBytes) -> None:
        """Append a run of the leader; it must begin at ``end``. After an error, nothing of it is stored. No
        reference to its memory is kept.

        Raises:
            StreamRefused: The run begins elsewhere, its files differ, a record is damaged or cut, or the disk refuses.
        """

    def when_durable(self, callback: Callable[[StreamRefused | None], None]) -> None:
        """Call back when everything that was appended until now is durable here, or never will be."""

    def confirm(self, end: int) -> None:
        """Move a leader's ``confirmed_end`` up to ``end``, and acknowledge the appends that wait for it."""

    async def drop_before(self, start: int) -> None:
        """Remove a follower's files whose bytes are all before ``start``, which the leader has removed, too.

        Files that cannot be removed now are removed by a later call.
        """


class Leader(Protocol):
    """What a leader's streams report, each on the event loop. ``confirm`` may be called before a call returns."""

    def stream_added(self, stream: PairStream) -> None:
        """A stream was created; its ``origin`` is known, and nothing of it was reported yet."""

    def stream_removed(self, name: str) -> None:
        """A stream was deleted, with all its bytes."""

    def written(self, name: str, end: int) -> None:
        """A stream ends at ``end``: records before it may be read and sent. One call may report several appends."""

    def synced(self, name: str, end: int) -> None:
        """A stream is durable up to ``end``; it waits for ``confirm(end)``."""


class PairStreams(Protocol):
    """All streams of this broker."""

    def all(self) -> Sequence[PairStream]: ...

    def get(self, name: str) -> PairStream | None: ...

    def epochs(self, name: str) -> Epochs:
        """Return the epochs of a stream that exists."""

    def facts_of(self, stream: PairStream) -> StreamFacts | None:
        """Return the facts of one stream; ``None`` while its incarnation is not durable (blocking: reads its tail)."""

    def facts(self) -> Mapping[str, StreamFacts]:
        """Return all streams whose incarnation is durable, with their durable ends (blocking: reads their tails)."""

    # ---- a follower; what returns is durable

    async def cut(self, cuts: Mapping[str, int | None], epoch: int, master: str) -> None:
        """Copy the bytes of each stream from its offset on to ``lost+found``, then cut them; ``None``: all of it.

        ``master``, the leader of ``epoch``, has none of them. A stream of which nothing can be kept is gone afterwards.

        Raises:
            StreamRefused: The disk refuses: the broker must be opened again, which finishes what was begun.
        """

    async def adopt(self, streams: Mapping[str, tuple[StreamOrigin, Epochs]]) -> None:
        """Create empty copies of the streams that do not exist, and replace the epochs of all.

        Raises:
            StreamRefused: The disk refuses, or a stream exists in another incarnation.
        """

    # ---- a leader

    async def begin_epoch(self, epoch: int) -> Mapping[str, int]:
        """Add the entry ``(epoch, end)`` to every stream, durably; return the ends.

        No stream is appended to between the moment of these ends and the return.

        Raises:
            StreamRefused: The disk refuses.
        """

    def lead(self, leader: Leader) -> None:
        """From now on syncs wait for ``confirm``. What is durable now counts as confirmed."""

    def refuse_waiting(self, reason: str) -> None:
        """Refuse the puts that wait for ``confirm``; their bytes stay, and may be confirmed later."""

    def fence(self, reason: str) -> None:
        """Refuse everything that waits for ``confirm``, now and from now on; nothing is acknowledged any more."""

    def end(self, reason: str) -> None:
        """Refuse what waits for ``confirm``, now and from now on, because the broker stops."""
