"""A log and a state table in memory, whose disk is as slow and as forgetful as a test wants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Self

from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.rocketmq.delays.waiting import Read, WaitingMessage
from metaq_broker.rocketmq.moves.log import Origins, Queue
from metaq_broker.rocketmq.moves.mover import Mover

ORDERS, BILLS = Queue("orders", 0), Queue("bills", 3)
NOW = 1_000_000


class Message(NamedTuple):
    """``origin`` is that of a moved message; ``target`` and ``due_ms`` are those of one that waits."""

    text: str
    origin: int = 0
    target: Queue | None = None
    stored_ms: int = 0
    due_ms: int = 0


@dataclass
class Disk:
    """What outlives a crash. Partitions and the table are synced each by itself and in order."""

    queues: dict[Queue, list[Message]] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    renumbered: dict[Queue, int] = field(default_factory=dict)


class MemoryLog:
    """Implements ``MoveLog``, ``WaitingLog`` and ``State``. Nothing is durable before ``sync_one`` or ``sync_all``."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.table = dict(disk.values)
        self.refusals: dict[Queue, Refusal] = {}
        self.unreadable: dict[Queue, Refusal] = {}
        self.defects: dict[Queue, Exception] = {}
        self._appends: dict[Queue, list[tuple[Sequence[Message], Callable[[Refusal | None], None]]]] = {}
        self._changes: list[tuple[str, bytes | None, Callable[[Exception | None], None] | None]] = []

    # ---- the log

    def append(self, queue: Queue, messages: Sequence[Message], stored: Callable[[Refusal | None], None]) -> None:
        if queue in self.defects:
            raise self.defects[queue]
        if (refusal := self.refusals.get(queue)) is not None:
            stored(refusal)
        else:
            self._appends.setdefault(queue, []).append((messages, stored))

    def end(self, queue: Queue) -> int:
        return 0 if queue in self.unreadable else len(self.disk.queues.get(queue, ()))

    def fault(self, queue: Queue) -> Refusal | None:
        return self.unreadable.get(queue)

    def origins(self, queue: Queue, first: int) -> Origins:
        found = self.disk.queues.get(queue, [])[first : first + 3]
        return Origins([each.origin for each in found if each.origin], first + len(found))

    # ---- the table

    def get(self, key: str) -> bytes | None:
        return self.table.get(key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return iter([(key, value) for key, value in self.table.items() if key.startswith(prefix)])

    def put(self, key: str, value: bytes, on_durable: Callable[[Exception | None], None] | None = None) -> None:
        self.table[key] = value
        self._changes.append((key, value, on_durable))

    def delete(self, key: str, on_durable: Callable[[Exception | None], None] | None = None) -> None:
        self.table.pop(key, None)
        self._changes.append((key, None, on_durable))

    def when_durable(self, on_durable: Callable[[Exception | None], None]) -> None:
        self._changes.append(("", None, on_durable))

    # ---- time and accidents

    @property
    def under_way(self) -> bool:
        return bool(self._appends or self._changes)

    def sync_one(self, random: Random) -> None:
        """Sync one partition, or the table."""
        choices: list[Queue | None] = [*self._appends, *([None] if self._changes else [])]
        chosen = random.choice(choices)
        if chosen is None:
            changes, self._changes = self._changes, []
            for change in changes:
                self._keep(change)
            for _, _, saved in changes:
                if saved is not None:
                    saved(None)
            return
        for messages, stored in self._appends.pop(chosen):
            self.disk.queues.setdefault(chosen, []).extend(messages)
            stored(None)

    def sync_all(self) -> None:
        random = Random(1)
        while self.under_way:
            self.sync_one(random)

    def crash(self, random: Random) -> Disk:
        """End here: of what was not synced yet, a front part of each file is there."""
        for queue, appends in self._appends.items():
            for messages, _ in appends[: random.randint(0, len(appends))]:
                self.disk.queues.setdefault(queue, []).extend(messages)
        for change in self._changes[: random.randint(0, len(self._changes))]:
            self._keep(change)
        return self.disk

    def _keep(self, change: tuple[str, bytes | None, object]) -> None:
        key, value, _ = change
        if value is not None:
            self.disk.values[key] = value
        else:
            self.disk.values.pop(key, None)


class MemoryWaitingLog:
    """The ``WaitingLog`` of one topic of a ``MemoryLog``."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        self.log, self.topic, self.size, self.first = log, topic, 0, 0
        self.broken_ordinal: int | None = None

    def end(self, queue: int) -> int:
        return self.log.end(Queue(self.topic, queue))

    def renumbered(self, queue: int) -> int | None:
        return self.log.disk.renumbered.get(Queue(self.topic, queue))

    def fault(self, queue: int) -> Refusal | None:
        return self.log.fault(Queue(self.topic, queue))

    def read(self, queue: int, first: int, count: int) -> Read[Message] | Refusal:
        if (defect := self.log.defects.get(Queue(self.topic, queue))) is not None:
            raise defect
        first = max(first, self.first)
        stored = self.log.disk.queues.get(Queue(self.topic, queue), [])[first : first + count]
        if self.broken_ordinal in range(first, first + len(stored)):
            raise RuntimeError("a defect")
        waiting = []
        for ordinal, each in enumerate(stored, first):
            origin = ordinal + 1 + 1000 * queue
            moved = each._replace(origin=origin)
            waiting.append(WaitingMessage(ordinal, origin, each.stored_ms, each.due_ms, each.target, moved, self.size))
        return Read(waiting, first + len(stored))


class MovingBroker(ABC):
    """A mover on a memory log. A subclass has what gives it messages to move."""

    def __init__(self, disk: Disk) -> None:
        self.log = MemoryLog(disk)
        self.mover = Mover[Message](self.log, self.log)

    def recover(self) -> None:
        while not self.mover.recover():
            pass

    @abstractmethod
    def step(self, now_ms: int) -> object:
        """Do what is due, as far as that goes without the disk."""

    def delivered(self, queue: Queue = ORDERS) -> list[str]:
        return [each.text for each in self.log.disk.queues.get(queue, ())]

    def sync_some(self, random: Random, ticks: float = 0.3) -> None:
        """Let the disk sync up to three files, and perhaps the mover note what it has done."""
        for _ in range(random.randint(0, 3)):
            if self.log.under_way:
                self.log.sync_one(random)
        if random.random() < ticks:
            self.mover.tick()

    def killed_at_any_step(self, random: Random, step_ms_max: int) -> tuple[Self, int]:
        """Go on for 300 steps with kills between them and a clock that is set back; the last life, and its time."""
        broker, now = self, NOW
        for _ in range(300):
            now += random.randrange(-200, step_ms_max)
            broker.step(now)
            broker.sync_some(random)
            if random.random() < 0.1:
                broker = type(self)(broker.log.crash(random))
                now -= random.choice((0, 0, 2_000))
        return broker, now
