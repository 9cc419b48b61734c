"""The contents of a batch: the number of messages for each partition, and their fingerprint. Recorded with the
decision.

A driver that repeats a batch gets the first decision, and its own rows are dropped, because they are stored already.
That is correct only if they are the same rows. A checkpoint that was restored from a backup, or copied for a second
query, repeats the number of a batch with other rows, which would be lost. So the decision contains a description::

    {"version": 1, "run": "1f0c...", "topics": {"orders": {"0-0": [120, "9c0d6b1f00a1e77b"], "0-1": [118, "..."]}},
     "brokers": {"0": 11}}

The fingerprint is independent of the order (``metaq_spark.columns.blocks``). Two batches are the same if each
topic gets the same messages: rows without a key may go to other partitions in a repetition if one is away.

``brokers`` are the participants, each with the last batch of the query that it had decided before; see ``history``. A
decision of an older version does not have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metaq.model import Partition, TopicPartition
from metaq_spark.columns.blocks import MASK

_VERSION: Final = 1
_SHOWN_MAX: Final = 10


class Count(NamedTuple):
    """``rows`` messages with the sum ``fingerprint``, 0..2**64-1."""

    rows: int = 0
    fingerprint: int = 0

    def plus(self, other: Count) -> Count:
        """Both together."""
        return Count(self.rows + other.rows, self.fingerprint + other.fingerprint & MASK)


Counts = Mapping[TopicPartition, Count]


@dataclass(frozen=True)
class Contents:
    """The contents of a batch by partition. ``run``: Spark's id of the query run that wrote it, "" if unknown."""

    counts: Counts
    run: str = field(default="", compare=False)
    brokers: Mapping[int, int | None] = field(default_factory=dict, compare=False)
    """The brokers that took part, by id, and the batch that each of them knew as the last one before."""

    @classmethod
    def of(cls, counts: Iterable[Counts], run: str = "") -> Contents:
        """Return the combined contents of several tasks."""
        total: dict[TopicPartition, Count] = {}
        for each in counts:
            for target, count in each.items():
                total[target] = total.get(target, Count()).plus(count)
        return cls(total, run)

    @property
    def topics(self) -> dict[str, Count]:
        """The same by topic."""
        total: dict[str, Count] = {}
        for target, count in self.counts.items():
            total[target.topic] = total.get(target.topic, Count()).plus(count)
        return total

    def same_messages(self, other: Contents) -> bool:
        """Whether each topic gets the same messages from both."""
        return self.topics == other.topics

    def on_broker(self, broker_id: int) -> str:
        """The partitions on a broker and their rows, for a message: ``orders/1-0 (120 rows), orders/1-1 (98 rows)``."""
        here = sorted((str(target), count.rows) for target, count in self.counts.items() if _on(target, broker_id))
        shown = [f"{target} ({rows} rows)" for target, rows in here[:_SHOWN_MAX]]
        return ", ".join(shown) + (f" and {len(here) - _SHOWN_MAX} more partitions" if len(here) > _SHOWN_MAX else "")

    def __str__(self) -> str:
        topics = sorted(self.topics.items())
        return " and ".join(f"{count.rows} rows for topic {topic}" for topic, count in topics) or "no rows"

    def to_json(self) -> str:
        """One line of JSON, the form that brokers keep."""
        topics: dict[str, dict[str, list[object]]] = {}
        for target, count in sorted(self.counts.items()):
            topics.setdefault(target.topic, {})[str(target.partition)] = [count.rows, f"{count.fingerprint:016x}"]
        tree: dict[str, object] = {"version": _VERSION, "run": self.run, "topics": topics}
        if self.brokers:
            tree["brokers"] = {str(number): self.brokers[number] for number in sorted(self.brokers)}
        return json.dumps(tree, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Contents:
        """Parse the form of ``to_json``.

        Raises:
            ValueError: It has another form, or a newer version.
        """
        try:
            stored = json.loads(text)
            if stored["version"] != _VERSION:
                raise ValueError(f"version {stored['version']} is not known")
            counts = {
                TopicPartition(topic, Partition.parse(name)): Count(int(rows), int(fingerprint, 16))
                for topic, partitions in stored["topics"].items()
                for name, (rows, fingerprint) in partitions.items()
            }
            brokers = {
                int(number): None if last is None else int(last) for number, last in stored.get("brokers", {}).items()
            }
            return cls(counts, str(stored["run"]), brokers)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"unexpected form: {error!r}") from None


def _on(target: TopicPartition, broker_id: int) -> bool:
    return target.partition.broker_id == broker_id
