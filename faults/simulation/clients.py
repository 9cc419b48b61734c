"""Clients of a history: producers, readers, and queries that write each batch exactly once."""

from __future__ import annotations

from faults.simulation.broker import JOURNAL, ROWS
from faults.simulation.disk import StoredRecord
from faults.simulation.events import between
from faults.simulation.member import SimulatedMember, Surroundings

TIMEOUT_US = 400_000


class Client:
    """Sends to one member until that refuses, does not answer, or is not there; then to the next one."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.all = surroundings
        self.random = surroundings.random
        self._target = self.random.randrange(len(surroundings.members))
        self.is_over = False

    @property
    def target(self) -> SimulatedMember:
        return self.all.members[self._target % len(self.all.members)]

    def look_elsewhere(self) -> None:
        self._target += 1

    def delay(self) -> int:
        return between(self.random, 50, 1_000)


class Producer(Client):
    """Puts one message after the other; what is not answered in time may be stored."""

    def __init__(self, surroundings: Surroundings, interval: int, size_max: int) -> None:
        super().__init__(surroundings)
        self._interval, self._size_max = interval, size_max
        self._next()

    def _next(self) -> None:
        if not self.is_over:
            self.all.schedule.after(between(self.random, 1, 2 * self._interval), self._send)

    def _send(self) -> None:
        self.all.serials += 1
        late = self.random.randint(0, 1_500_000) if self.random.random() < 0.03 else 0
        stream = ("t-0", "t-1")[self.random.random() < 0.3]
        member = self.target
        if not member.is_alive:
            self.look_elsewhere()
        else:
            self.all.schedule.after(self.delay() + late, self._arrive, member, stream, self.all.serials)
        self._next()

    def _arrive(self, member: SimulatedMember, stream: str, serial: int) -> None:
        if member.is_frozen:
            self.look_elsewhere()
        member.after(0, self._put, member, stream, serial)

    def _put(self, member: SimulatedMember, stream: str, serial: int) -> None:
        serving = member.serving
        if serving is None or not serving.takes_puts or member.disk.is_full or stream not in member.disk.streams:
            self.look_elsewhere()
            return

        def acknowledge(record: StoredRecord) -> None:
            self.all.checker.acknowledge(member, stream, record)

        size = between(self.random, 1, self._size_max)
        serving.put(stream, size, serial, ("message",), acknowledge=acknowledge)


class Reader(Client):
    """Reads a few messages at the end, or anywhere, from whoever serves."""

    def __init__(self, surroundings: Surroundings, interval: int) -> None:
        super().__init__(surroundings)
        self._interval = interval
        self._next()

    def _next(self) -> None:
        if not self.is_over:
            self.all.schedule.after(between(self.random, 1, 2 * self._interval), self._read)

    def _read(self) -> None:
        member = self.random.choice(self.all.members)
        if member.is_alive:
            member.after(self.delay(), self._reads, member)
        self._next()

    def _reads(self, member: SimulatedMember) -> None:
        serving, name = member.serving, self.random.choice((ROWS, "t-1", JOURNAL))
        if serving is None or name not in member.disk.streams:
            return
        end, stream = serving.readable_end(name), member.disk.streams[name]
        count = stream.count_before(end)
        first = max(0, count - 5) if self.random.random() < 0.7 else self.random.randint(0, count)
        self.all.checker.read(member, name, stream.records[first : min(first + 5, count)], end)


class Query(Client):
    """Decides one batch after the other; each attempt has another choice, and the one that counts is the answer's."""

    def __init__(self, surroundings: Surroundings, number: int, interval: int) -> None:
        super().__init__(surroundings)
        self._batch, self._interval = number * 10_000, interval
        self._attempt = 0
        self._next_batch()

    def _next_batch(self) -> None:
        if not self.is_over:
            self._batch += 1
            self.all.schedule.after(between(self.random, 1, 2 * self._interval), self._try, self._batch)

    def _try(self, batch: int) -> None:
        if batch != self._batch:
            return
        self._attempt += 1
        member, attempt = self.target, self._attempt
        if member.is_alive:
            member.after(self.delay(), self._decide, member, batch, attempt)
        self.all.schedule.after(TIMEOUT_US, self._give_up, batch, attempt)

    def _give_up(self, batch: int, attempt: int) -> None:
        if batch == self._batch and attempt == self._attempt:
            self.look_elsewhere()
            self._try(batch)

    def _decide(self, member: SimulatedMember, batch: int, attempt: int) -> None:
        serving = member.serving
        if serving is None or not serving.takes_puts or not {JOURNAL, ROWS} <= member.disk.streams.keys():
            return

        def answer(choice: object) -> None:
            self.all.checker.answer(batch, choice)
            self.all.schedule.after(self.delay(), self._answered, batch)

        serving.decide(batch, attempt, answer)

    def _answered(self, batch: int) -> None:
        if batch == self._batch and self.random.random() < 0.9:  # otherwise the answer is lost
            self._next_batch()
