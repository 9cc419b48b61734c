"""What a master of a history does with its streams: puts, reads, ids of messages, decisions of exactly-once queries.

The journal's records refer to nothing that is not confirmed, as in the broker: a decision counts, its rows are
appended, and it is noted as applied, each after the step before was confirmed. A new master reads all of that from its
streams, and finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from faults.simulation.disk import Disk, StoredRecord

JOURNAL = "transactions"
ROWS = "t-0"

Done = Callable[[StoredRecord], None]
"""Called with a record once it is confirmed."""


class Waiting(NamedTuple):
    """``acknowledge`` is for a client's put: it is dropped when the gate closes, and ``done`` is not."""

    record: StoredRecord
    done: Done | None
    acknowledge: Done | None


class Serving:
    """From a promotion to the end of the master. ``append`` stores a record and reports it to the core."""

    def __init__(
        self,
        disk: Disk,
        clock: Callable[[], int],
        append: Callable[[str, StoredRecord], None],
        when_ready: Callable[[Callable[[], None]], None],
    ) -> None:
        self._disk, self._clock, self._append, self._when_ready = disk, clock, append, when_ready
        self.is_over = self.has_recovered = False
        self.gate_is_open = False
        self.readable: dict[str, int] = {}
        self.waiting: dict[str, list[Waiting]] = {}
        self.decisions: dict[int, object] = {}
        self.undecided: dict[int, list[Callable[[object], None]]] = {}
        self.applied: set[int] = set()
        self._last_id = self.last_stored_id()

    def last_stored_id(self) -> int:
        """Return the highest id of all streams: new ones are above it, whatever the clock says."""
        last = (stream.records[-1].message_id for stream in self._disk.streams.values() if stream.records)
        return max(last, default=0)

    def next_id(self) -> int:
        self._last_id = max(self._clock(), self._last_id + 1)
        return self._last_id

    # ---- puts and reads

    def put(
        self,
        stream: str,
        size: int,
        serial: int,
        content: tuple[object, ...],
        done: Done | None = None,
        acknowledge: Done | None = None,
    ) -> None:
        """Append a message as soon as an epoch that begins has begun."""
        self._when_ready(lambda: self._put(stream, size, serial, content, done, acknowledge))

    def _put(
        self,
        stream: str,
        size: int,
        serial: int,
        content: tuple[object, ...],
        done: Done | None,
        acknowledge: Done | None,
    ) -> None:
        if self.is_over or stream not in self._disk.streams:
            return
        end = self._disk.streams[stream].end
        record = StoredRecord(end, end + size, self.next_id(), serial, content)
        self.waiting.setdefault(stream, []).append(Waiting(record, done, acknowledge))
        self._append(stream, record)

    def readable_end(self, stream: str) -> int:
        """Return the offset up to which clients may read."""
        return self.readable.get(stream, self._disk.streams[stream].origin.start)

    def move_readable_end(self, stream: str, end: int) -> None:
        self.readable[stream] = max(end, self.readable.get(stream, 0))
        waiting = self.waiting.get(stream, [])
        while waiting and waiting[0].record.end <= end:
            each = waiting.pop(0)
            if each.acknowledge is not None:
                each.acknowledge(each.record)
            if each.done is not None:
                each.done(each.record)

    def end(self) -> None:
        """Nothing is acknowledged, and nothing follows, any more."""
        self.is_over = True
        self.waiting.clear()

    def refuse_waiting(self) -> None:
        """Acknowledge none of the puts that wait; they stay stored."""
        for waiting in self.waiting.values():
            waiting[:] = [each._replace(acknowledge=None) for each in waiting]

    # ---- exactly-once batches

    @property
    def takes_puts(self) -> bool:
        return self.gate_is_open and self.has_recovered

    def recover(self) -> None:
        """Read the journal; everything that is stored here is confirmed. No client is served before."""
        self.has_recovered = True
        for record in self._disk.streams[JOURNAL].records:
            kind, batch, *choice = record.content
            assert isinstance(batch, int)
            if kind == "decide":
                self.decisions.setdefault(batch, choice[0])
            elif kind == "applied":
                self.applied.add(batch)
        written = {record.content[1] for record in self._disk.streams[ROWS].records if record.content[0] == "row"}
        for batch in sorted(self.decisions.keys() - self.applied):
            if batch in written:
                self._note_applied(batch)
            else:
                self._apply(batch, self.decisions[batch], lambda choice: None)

    def decide(self, batch: int, choice: object, answer: Callable[[object], None]) -> None:
        """Answer with the batch's one decision, once its rows are readable."""
        if batch in self.applied:
            answer(self.decisions[batch])
        elif batch in self.undecided:
            self.undecided[batch].append(answer)
        elif batch not in self.decisions:
            self.undecided[batch] = [answer]
            self.put(JOURNAL, 40, -1, ("decide", batch, choice), lambda _: self._decided(batch, choice))

    def _decided(self, batch: int, choice: object) -> None:
        self.decisions[batch] = choice
        waiting = self.undecided.pop(batch, [])
        self._apply(batch, choice, lambda choice: [each(choice) for each in waiting])

    def _apply(self, batch: int, choice: object, answer: Callable[[object], object]) -> None:
        def stored(record: StoredRecord) -> None:
            self._note_applied(batch)
            answer(choice)

        self.put(ROWS, 60, -1, ("row", batch, choice), stored)

    def _note_applied(self, batch: int) -> None:
        self.applied.add(batch)
        self.put(JOURNAL, 24, -1, ("applied", batch))
