"""A stream that cannot be read, because of its options or its schema: every question is answered with the reason.

A source's process of PySpark covers an error of ``streamReader`` with one of its own (it stops the reader that it did
not get). So the refusal waits in this reader for the first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from metaq_spark.errors import ConnectorError
from metaq_spark.plain_errors import plain_errors


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises ``reason`` from whatever Spark calls."""

    def __init__(self, reason: ConnectorError) -> None:
        self._reason = reason

    @plain_errors
    def _refuse(self) -> NoReturn:
        raise self._reason

    def initialOffset(self) -> dict[str, Any]:
        """Refused."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Refused."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        """Refused."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Refused."""
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Refused."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Refused."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Refused."""
        self._refuse()
