"""What the installed Spark lacks: the features that came after the oldest version, and stand-ins for their classes.

A feature is present if PySpark has its name, whatever version it says: vendors add newer parts to their builds. The
table of versions in docs/connector.md has these rows. What differs between versions of PySpark is imported from here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

SPARK_MIN: Final = "4.0"
"""The oldest version with Python data sources."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Feature:
    """A part of PySpark that came with Spark ``since``: ``name`` in ``module``.

    ``title`` and ``without`` are what the documentation says: what it is, and what the connector does where it is
    missing.
    """

    title: str
    since: str
    module: str
    name: str
    without: str

    @property
    def present(self) -> bool:
        """Whether the installed PySpark has it."""
        try:
            attrgetter(self.name)(importlib.import_module(self.module))
        except (ModuleNotFoundError, AttributeError):
            return False
        return True


ADMISSION_CONTROL: Final = Feature(
    "limits that Spark knows (admission control)",
    "4.2",
    "pyspark.sql.streaming.datasource",
    "ReadLimit",
    "the source keeps the limits that are given",
)
AVAILABLE_NOW: Final = Feature(
    "`availableNow` in several micro-batches",
    "4.2",
    "pyspark.sql.streaming.datasource",
    "SupportsTriggerAvailableNow",
    "one micro-batch, up to the end or a limit",
)
LATEST_OFFSET: Final = Feature(
    "`latestOffset` in a query's progress",
    "4.2",
    "pyspark.sql.datasource",
    "DataSourceStreamReader.reportLatestOffset",
    "not reported",
)
NAMED_SOURCES: Final = Feature(
    '`readStream.name("...")`', "4.2", "pyspark.sql.streaming.readwriter", "DataStreamReader.name", "no names"
)
ARROW_STREAM_WRITER: Final = Feature(
    "streaming writes in Arrow batches",
    "4.1",
    "pyspark.sql.datasource",
    "DataSourceStreamArrowWriter",
    "row by row, slower",
)
PUSHED_FILTERS: Final = Feature(
    "`pushFilters`", "4.1", "pyspark.sql.datasource", "DataSourceReader.pushFilters", "ignored, with a warning"
)
FEATURES: Final = (
    ADMISSION_CONTROL,
    AVAILABLE_NOW,
    LATEST_OFFSET,
    NAMED_SOURCES,
    ARROW_STREAM_WRITER,
    PUSHED_FILTERS,
)
"""Every feature, in the order of the documentation."""


if TYPE_CHECKING or ADMISSION_CONTROL.present:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """PySpark's, as those below, where it has none."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        max_bytes: int

    class SupportsTriggerAvailableNow:
        pass


if TYPE_CHECKING or ARROW_STREAM_WRITER.present:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

__all__ = [
    "ADMISSION_CONTROL",
    "ARROW_STREAM_WRITER",
    "FEATURES",
    "LATEST_OFFSET",
    "PUSHED_FILTERS",
    "SPARK_MIN",
    "DataSourceStreamArrowWriter",
    "Feature",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_type",
    "say_once",
    "spark_version",
]


def spark_version() -> str:
    """The version of the installed PySpark."""
    import pyspark

    return str(pyspark.__version__)


@functools.cache
def say_once(sentence: str) -> None:
    """Log a warning, once in this process."""
    _log.warning("%s", sentence)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type in which Spark expects columns of type ``kind``, by Spark's own function."""
    return _to_arrow_type()(kind)


@functools.cache
def _to_arrow_type() -> Callable[[DataType], pa.DataType]:
    """Spark's function, for times in UTC: its default before Spark 4.2."""
    from pyspark.sql.pandas.types import to_arrow_type

    in_utc = "timezone" in inspect.signature(to_arrow_type).parameters
    return functools.partial(to_arrow_type, timezone="UTC") if in_utc else to_arrow_type
