"""Tells histories by hand, with what is stored laid down beside them, for the checker's tests."""

from __future__ import annotations

from collections import defaultdict

from faults.checker import check
from faults.checker.anomaly import Case, Kind
from faults.history import History, Outcome, Put, Sent, StepKind, TransactionRecord
from faults.payload import MessageKey
from faults.stored import PartitionImage, PartitionKey, StoredFrame

A, B = PartitionKey("orders", 0), PartitionKey("orders", 1)
BYTES = 100
OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


class Scenario:
    """Tells a history step by step and lays down what is stored beside it; every frame has ``BYTES`` bytes."""

    def __init__(self) -> None:
        self.history = History()
        self.frames: dict[PartitionKey, list[StoredFrame]] = defaultdict(list)
        self.faults: dict[PartitionKey, str] = {}
        self.starts: dict[PartitionKey, int] = defaultdict(int)
        self.retention = False

    def store(self, number: int, partition_key: PartitionKey = A, **changes: object) -> int:
        """Store the frame of message ``number`` at the end of a partition; return its offset."""
        offset = self.frames[partition_key][-1].end if self.frames[partition_key] else self.starts[partition_key]
        frame = StoredFrame(offset, offset + BYTES, 7000 + number, 0, 5000 + number, MessageKey("p", number))
        self.frames[partition_key].append(frame._replace(**changes))  # type: ignore[arg-type]
        return offset

    def begin_put(
        self,
        *numbers: int,
        partition_key: PartitionKey = A,
        lane: str = "lane",
        inside: TransactionRecord | None = None,
    ) -> Put:
        messages = [Sent(MessageKey("p", number), 0, 5000 + number, BYTES) for number in numbers]
        return self.history.put_begins(lane, partition_key, messages, inside)

    def acknowledge(self, put: Put, offset: int, partition_key: PartitionKey | None = None) -> None:
        self.history.put_acknowledged(
            put, 7000 + put.messages[0].key.sequence, (partition_key or put.partition_key).index, offset
        )

    def put(
        self, *numbers: int, partition_key: PartitionKey = A, lane: str = "lane", outcome: Outcome = OK, stored: int = 1
    ) -> Put:
        """Put messages as one unit, stored ``stored`` times, acknowledged at the first copy (or its end if none)."""
        put = self.begin_put(*numbers, partition_key=partition_key, lane=lane)
        end = self.frames[partition_key][-1].end if self.frames[partition_key] else 0
        for _ in range(stored):
            for number in numbers:
                self.store(number, partition_key)
        if outcome is OK:
            self.acknowledge(put, end)
        elif outcome is FAILED:
            self.history.put_refused(put, "no", definite=True)
        return put

    def transaction(
        self, key: str, *numbers: int, unique: str | None = "u", partition_key: PartitionKey = A
    ) -> TransactionRecord:
        """Begin a transaction and put messages into it, all acknowledged."""
        record = self.history.transaction_begins(key, unique)
        for number in numbers:
            self.acknowledge(self.begin_put(number, partition_key=partition_key, inside=record), -1)
        return record

    def step(self, record: TransactionRecord, kind: StepKind, outcome: Outcome = OK, reason: str = "") -> None:
        self.history.step_ended(self.history.step_begins(record, kind), outcome, reason)

    def list_prepared(self, *keys: str) -> None:
        self.history.listed(self.history.stamp(), "u", keys)

    def read(self, *offsets: int, partition_key: PartitionKey = A) -> None:
        self.history.seen(partition_key, [frame for frame in self.frames[partition_key] if frame.offset in offsets])

    def case(self) -> Case:
        image = {
            partition_key: PartitionImage(
                partition_key,
                self.starts[partition_key],
                frames[-1].end if frames else 0,
                tuple(frames),
                self.faults.get(partition_key, ""),
            )
            for partition_key, frames in self.frames.items()
        }
        return Case(self.history, image, self.retention)

    def kinds(self) -> set[Kind]:
        return {anomaly.kind for anomaly in check(self.case())}
