"""Checks an output topic against the input. Pure: lists in, anomalies out.

The query copies every message of a source (an input partition, the ``producer`` of its payloads) to an output partition
that source and sequence determine. So each output partition must have the sequences of a source in rising order, and
all output partitions together must have every message once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from faults.payload import MessageKey


class Kind(Enum):
    """The kinds of anomalies. The value is the text in reports."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "out of order"
    MISPLACED = "in the wrong partition"
    FOREIGN = "never sent"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding. ``where`` is an output partition, empty if it concerns all of them."""

    kind: Kind
    what: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}" + (f" in partition {self.where}" if self.where else "")


@dataclass(frozen=True, slots=True)
class Seen:
    """One message of the output: its offset, and its key or, if that is unknown, why."""

    offset: int
    key: MessageKey | None
    fault: str = ""


Output = Mapping[str, Sequence[Seen]]
"""Output partition -> its messages, in the order of their offsets."""


def check(
    sent: Mapping[str, int], output: Output, partition_of: Callable[[MessageKey], str], *, repeats_allowed: bool
) -> list[Anomaly]:
    """Return all anomalies.

    ``sent``: source -> number of its messages, with sequences from 0. ``partition_of``: the output partition of a
    message. ``repeats_allowed``: further copies are no anomalies and need not be in order.
    """
    copies = Counter(seen.key for messages in output.values() for seen in messages if seen.key is not None)
    anomalies = [
        anomaly
        for partition_key, messages in output.items()
        for anomaly in _of_partition(sent, partition_key, messages)
    ]
    anomalies += _order(output)
    anomalies += (
        Anomaly(Kind.MISPLACED, f"{seen.key} belongs to {partition_of(seen.key)}", partition_key)
        for partition_key, messages in output.items()
        for seen in messages
        if seen.key is not None and seen.key.producer in sent and partition_of(seen.key) != partition_key
    )
    if not repeats_allowed:
        anomalies += (Anomaly(Kind.DUPLICATED, f"{key}, {count} times") for key, count in copies.items() if count > 1)
    anomalies += (Anomaly(Kind.LOST, str(key)) for key in _all_sent(sent) if key not in copies)
    return anomalies


def _all_sent(sent: Mapping[str, int]) -> Iterator[MessageKey]:
    return (MessageKey(source, sequence) for source, count in sent.items() for sequence in range(count))


def _of_partition(sent: Mapping[str, int], partition_key: str, messages: Iterable[Seen]) -> Iterator[Anomaly]:
    for seen in messages:
        if seen.key is None:
            yield Anomaly(Kind.CORRUPT, f"offset {seen.offset}: {seen.fault}", partition_key)
        elif not 0 <= seen.key.sequence < sent.get(seen.key.producer, 0):
            yield Anomaly(Kind.FOREIGN, f"{seen.key} at offset {seen.offset}", partition_key)


def _order(output: Output) -> Iterator[Anomaly]:
    """Yield first copies that are after a later message of the same source."""
    for partition_key, messages in output.items():
        met: set[MessageKey] = set()
        highest: dict[str, int] = {}
        for seen in messages:
            if seen.key is None or seen.key in met:
                continue
            met.add(seen.key)
            before = highest.get(seen.key.producer, -1)
            if seen.key.sequence < before:
                yield Anomaly(Kind.REORDERED, f"{seen.key} at offset {seen.offset} comes after {before}", partition_key)
            highest[seen.key.producer] = max(before, seen.key.sequence)
