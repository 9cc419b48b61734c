"""The streaming source for Spark before 4.2, which has no admission control: the reader keeps the limits itself.

Such a Spark passes neither the start of a batch nor a limit when it asks for the end of one. What it calls, in order::

    a new query          latestOffset(), initialOffset(), partitions(initial, end), latestOffset(), partitions(end, ...
    a restarted query    partitions(last, last), where ``last`` is the newest end in the checkpoint;
                         partitions(start, last) if that batch was not committed; latestOffset(), partitions(last, ...

So a batch begins where the last call of ``partitions`` ended, and in a new query at its initial offset.

With ``Trigger.AvailableNow`` and ``Trigger.Once`` the calls are the same, and end after one batch. So each limit that
is given may end such a run early, which the log says, and the default of ``maxBytesPerTrigger`` is not used. The first
batch of a run, which may be the only one, waits for partitions that are missing, as the last one does with Spark 4.2.

``spark.sql.streaming.triggerAvailableNowWrapper.enabled`` changes the order: a restarted query is asked for its end
before anything says where it is. That is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from metaq_spark.errors import OptionError
from metaq_spark.offsets import Progress
from metaq_spark.plain_errors import plain_errors
from metaq_spark.source.backend import Source
from metaq_spark.source.limits import BatchLimits
from metaq_spark.source.planning import Plan
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.spark_version import ReadLimit, say_once, spark_version

BYTES_LIMIT: Final = "maxBytesPerTrigger"
LIMITS: Final = (BYTES_LIMIT, "maxOffsetsPerTrigger")
WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def given_limits(raw: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the limits that the options give."""
    keys = {key.lower() for key in raw}
    return tuple(name for name in LIMITS if name.lower() in keys)


class LimitingReader(StreamReader):
    """A ``StreamReader`` with the limits that are named in ``limits``."""

    def __init__(self, source: Source, limits: Collection[str]) -> None:
        super().__init__(source)
        self._given = limits
        self._reached: dict[str, Any] | None = None
        self._asked_start = self._answered = False

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        self._asked_start = True
        return super().initialOffset()

    @plain_errors
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return the end of the batch that begins where the last one ended; both arguments are never given."""
        start = super().initialOffset() if self._reached is None else self._reached
        end = super().latestOffset(start, ReadLimit())
        self._answered = True
        return end

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between the two offsets. The next batch begins at ``end``.

        Raises:
            OptionError: The end of a restarted query's batch was asked for before its start was known.
        """
        if self._reached is None and self._answered and not self._asked_start:
            raise OptionError(
                WRAPPER,
                f"true: Spark {spark_version()} then asks where a query ends before it says where it is; set it to "
                "false, the default: availableNow reads all there is in one micro-batch",
            )
        tasks = super().partitions(start, end)
        self._reached = end
        return tasks

    def _ends_run(self, limit: ReadLimit) -> bool:
        return not self._answered

    def _cut(self, plan: Plan, limit: ReadLimit) -> Progress:
        end = super()._cut(plan, limit)
        if not self._answered and any(end.offsets[where] < span.end for where, span in plan.ahead.items()):
            say_once(
                f"the first micro-batch ends before the newest message, because of {' and '.join(self._given)}. With "
                f"availableNow or once, Spark {spark_version()} makes no other one, and leaves the rest for the next "
                "run; without a limit a run reads all there is"
            )
        return end

    def _limits(self, limit: ReadLimit) -> BatchLimits:
        bytes_max = self._options.trigger_bytes_max if BYTES_LIMIT in self._given else None
        return BatchLimits(bytes_max, self._options.trigger_messages_max)
