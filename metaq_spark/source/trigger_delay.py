"""Holding a micro-batch back until there are enough messages: ``minOffsetsPerTrigger`` with ``maxTriggerDelay``.

As in Spark's Kafka source, the first micro-batch of a run is not held back, and one never waits longer than the delay
since the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metaq.formats.frames import HEADER_BYTES
from metaq.model import OffsetRange, TopicPartition
from metaq.net.clock import Clock
from metaq_spark.offsets import Ranges
from metaq_spark.source.frames import MessageCounts, Skip


@dataclass(slots=True)
class TriggerDelay:
    """Remembers when the last micro-batch went, and how many messages were counted so far for the next one."""

    clock: Clock
    delay_s_max: float
    _last_s: float | None = None
    _counted: dict[TopicPartition, tuple[OffsetRange, int]] = field(default_factory=dict)

    def should_wait(self, ahead: Ranges, messages_min: int | None, counts: MessageCounts) -> bool:
        """Whether a micro-batch of ``ahead`` is to wait; if it does not wait, it is taken as gone."""
        if not any(map(len, ahead.values())):
            return False
        now_s = self.clock.monotonic()
        waited = self._last_s is None or now_s - self._last_s >= self.delay_s_max
        if messages_min is not None and not waited and not self._enough(ahead, messages_min, counts):
            return True
        self._last_s = now_s
        self._counted.clear()
        return False

    def _enough(self, ahead: Ranges, messages_min: int, counts: MessageCounts) -> bool:
        if sum(map(len, ahead.values())) < messages_min * HEADER_BYTES:  # no need to ask
            return False
        uncounted = {where: self._behind_counted(where, span) for where, span in ahead.items()}
        asked = {where: Skip(span, messages_min) for where, span in uncounted.items() if len(span)}
        for where, skipped in (counts.skip(asked) if asked else {}).items():
            before = self._counted[where][1] if uncounted[where].start > ahead[where].start else 0
            self._counted[where] = (OffsetRange(ahead[where].start, skipped.offset), before + skipped.messages)
        return sum(count for where, (_, count) in self._counted.items() if where in ahead) >= messages_min

    def _behind_counted(self, where: TopicPartition, span: OffsetRange) -> OffsetRange:
        known, _ = self._counted.get(where, (None, 0))
        if known is None or known.start != span.start:
            self._counted.pop(where, None)
            return span
        return OffsetRange(known.end, span.end)
