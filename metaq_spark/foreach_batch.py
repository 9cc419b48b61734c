"""A function for ``foreachBatch`` that appends every micro-batch to a topic, exactly once: for output mode ``update``.

Spark refuses output mode ``update`` for a sink in Python, but not in ``foreachBatch``::

    from metaq_spark.foreach_batch import ExactlyOnceBatches

    write = ExactlyOnceBatches("metaq", brokers="127.0.0.1:8123", topic="totals", txnAppId="totals-1")
    totals.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", "...").start()

Spark runs a micro-batch again if the driver dies before its commit is noted. The brokers remember the last batch of
each ``txnAppId``, so the repetition writes nothing. It must have the same rows, as for every exactly-once write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from metaq_spark.backend import FORMATS, backend_named
from metaq_spark.errors import OptionError
from metaq_spark.options.table import Use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE: Final = "10m"
"""``brokerWaitMs``, unless it is given: as for a streaming write."""

_SET_HERE: Final = {
    "txnversion": "the number of the micro-batch is used",
    "delivery": "it is exactly_once here; for at least once, write in a function of your own",
}


class ExactlyOnceBatches:
    """Call it with a micro-batch and its number. It can be pickled, so it also works with Spark Connect.

    ``format_name`` is ``metaq`` or ``rocketmq`` (with the bundled broker); ``options`` as for a batch write.
    ``txnAppId`` is required: a name that no other write has, not even another one of the same query. A query with a new
    checkpoint needs a new name, because its micro-batches count from 0 again; with the old name they are refused.

    Raises:
        OptionError: The format is unknown, ``txnAppId`` is missing, or an option is given that is set here.
    """

    def __init__(self, format_name: str, options: Mapping[str, str] | None = None, /, **more: str) -> None:
        given = {name: _text(value) for name, value in {**(options or {}), **more}.items()}
        lower = {name.lower() for name in given}
        if format_name not in FORMATS:
            raise OptionError(
                "format", f"{format_name!r} is not a format of this package; there are {', '.join(FORMATS)}"
            )
        for name in given:
            if name.lower() in _SET_HERE:
                raise OptionError(name, _SET_HERE[name.lower()])
        if "txnappid" not in lower:
            raise OptionError("txnAppId", "it is required: the name under which the brokers remember the last batch")
        self._format, self._options = format_name, given
        self._waits = "brokerwaitms" in lower

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Append ``rows`` as micro-batch ``batch_id``, all or nothing; nothing if the batch was written before.

        Batch 0 does not wait for brokers that are away before its tasks run, because a wrong option looks the same.

        Raises:
            MetaqError: Batch 0: a broker could not be asked, or does not accept the topic.
            OptionError, ColumnError: Batch 0: an option or a column is wrong.
            Exception: Spark's, with the error of the write in its text.
        """
        options: dict[str, Any] = {**self._options, "delivery": "exactly_once", "txnVersion": str(batch_id)}
        if not self._waits:
            if batch_id == 0:
                backend_named(self._format).sink(options, Use.BATCH_WRITE, rows.schema)  # looks without waiting
            options["brokerWaitMs"] = PATIENCE
        rows.write.format(self._format).mode("append").options(**options).save()

    def __repr__(self) -> str:
        return f"ExactlyOnceBatches({self._format!r}, txnAppId={self._name!r})"

    @property
    def _name(self) -> str:
        return next(value for name, value in self._options.items() if name.lower() == "txnappid")


def _text(value: object) -> str:
    """Return an option as Spark's ``options`` passes it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)
