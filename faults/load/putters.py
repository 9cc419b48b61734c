"""Workers that put: single messages, pipelined ones, blocks, large ones, and ones that must be refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from faults.history import ANY_INDEX, Put
from faults.load.worker import MetaqWorker, PlannedMessage, put_command
from faults.stored import PartitionKey
from metaq.backends.metaq.session import Session
from metaq.protocols.text.commands import Put as PutCommand
from metaq.protocols.text.commands import PutBatch, Result

RETRY_CHANCE: Final = 0.5
"""How often an unanswered put is tried again, as by a careful client."""

WINDOW_MAX: Final = 64
BATCH_MESSAGES_MAX: Final = 60
BATCH_WINDOW_MAX: Final = 4
LARGE_BYTES_MIN, LARGE_BYTES_MAX = 20_000, 700_000
LARGE_INTERVAL_S: Final = 0.05


class SinglePutter(MetaqWorker):
    """Waits for each answer; repeats unanswered puts; sometimes sends a put that must be refused."""

    _unanswered: tuple[PartitionKey, PlannedMessage] | None = None

    def serve(self, session: Session) -> None:
        while not self.shift.over.is_set():
            if self.random.random() < 0.01:
                self._put_wrongly(session)
            self._put(session, *self._next())

    def _next(self) -> tuple[PartitionKey, PlannedMessage]:
        again, self._unanswered = self._unanswered, None
        if again is not None and self.random.random() < RETRY_CHANCE:
            return again
        partition_key = self.partition_key()
        if self.random.random() < 0.1:
            partition_key = PartitionKey(partition_key.topic, ANY_INDEX)
        return partition_key, self.write()

    def write(self) -> PlannedMessage:
        return self.small_letter()

    def _put(self, session: Session, partition_key: PartitionKey, letter: PlannedMessage) -> None:
        self._unanswered = partition_key, letter
        put = self.history.put_begins(self.lane, partition_key, (letter.sent,))
        self.settle(put, session.call(put_command(partition_key, letter)))
        self._unanswered = None

    def _put_wrongly(self, session: Session) -> None:
        """Send a put with a wrong checksum, or to a partition or topic that does not exist: it must store nothing."""
        partition_key, letter = self.partition_key(), self.small_letter()
        right = put_command(partition_key, letter)
        wrong: PutCommand = self.random.choice(
            (
                right._replace(checksum=(letter.sent.checksum + 1) & 0x7FFFFFFF),
                right._replace(partition=10_000),
                right._replace(topic="nobody-has-this"),
            )
        )
        put = self.history.put_begins(self.lane, partition_key, (letter.sent,))
        reply = session.call(wrong)
        self.history.put_refused(put, "sent to be refused", definite=True)
        if not isinstance(reply, Result) or reply.code != 500:
            self.history.odd("wrong put taken", f"{put}: {reply}")


class LargePutter(SinglePutter):
    """Puts messages that are larger than a segment or than the reply to one get."""

    def serve(self, session: Session) -> None:
        while not self.shift.over.wait(LARGE_INTERVAL_S * self.random.random()):
            self._put(session, *self._next())

    def write(self) -> PlannedMessage:
        return self.letter(int(LARGE_BYTES_MIN * (LARGE_BYTES_MAX / LARGE_BYTES_MIN) ** self.random.random()))


class UnderWay(NamedTuple):
    """A request without an answer so far."""

    opaque: int
    put: Put


class Pipeliner(MetaqWorker):
    """Keeps up to a window of single puts in flight on one connection, to several partitions."""

    def serve(self, session: Session) -> None:
        waiting: deque[UnderWay] = deque()
        while not self.shift.over.is_set():
            for _ in range(self.random.randint(1, WINDOW_MAX) - len(waiting)):
                waiting.append(self._send(session))
            for _ in range(self.random.randint(0, len(waiting))):
                self._take(session, waiting.popleft())
        while waiting:
            self._take(session, waiting.popleft())

    def _send(self, session: Session) -> UnderWay:
        partition_key, letter = self.partition_key(), self.small_letter()
        put = self.history.put_begins(self.lane, partition_key, (letter.sent,))
        return UnderWay(session.post(put_command(partition_key, letter)), put)

    def _take(self, session: Session, sent: UnderWay) -> None:
        self.settle(sent.put, session.wait(sent.opaque))


class Block(NamedTuple):
    partition_key: PartitionKey
    letters: Sequence[PlannedMessage]


class Batcher(MetaqWorker):
    """Keeps a few blocks in flight, in order; repeats unanswered ones with the same content."""

    _unanswered: Sequence[Block] = ()

    def serve(self, session: Session) -> None:
        again = deque(block for block in self._unanswered if self.random.random() < RETRY_CHANCE)
        waiting: deque[tuple[UnderWay, Block]] = deque()
        try:
            while not self.shift.over.is_set():
                block = again.popleft() if again else self._write()
                self._unanswered = [*(sent for _, sent in waiting), block]
                waiting.append((self._send(session, block), block))
                if len(waiting) >= BATCH_WINDOW_MAX:
                    self._take(session, waiting)
            while waiting:
                self._take(session, waiting)
        finally:
            self._unanswered = [*self._unanswered, *again]

    def _write(self) -> Block:
        count = self.random.randint(1, BATCH_MESSAGES_MAX)
        return Block(self.partition_key(), [self.small_letter() for _ in range(count)])

    def _send(self, session: Session, block: Block) -> UnderWay:
        put = self.history.put_begins(self.lane, block.partition_key, [letter.sent for letter in block.letters])
        return UnderWay(session.post(batch_command(block.partition_key, block.letters)), put)

    def _take(self, session: Session, waiting: deque[tuple[UnderWay, Block]]) -> None:
        sent, _ = waiting[0]
        self.settle(sent.put, session.wait(sent.opaque))
        waiting.popleft()
        self._unanswered = [block for _, block in waiting]


def batch_command(partition_key: PartitionKey, letters: Sequence[PlannedMessage]) -> PutBatch:
    """Return the command that puts messages as one block."""
    return PutBatch(
        partition_key.topic, partition_key.index, b"".join(letter.frame() for letter in letters), len(letters), 0
    )
