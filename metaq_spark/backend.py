"""A format as a whole: what a backend module offers, and how it is found by the format's name.

A backend is one object, ``BACKEND``, of a module that is imported when the format is used. Everything that differs
between ``format("metaq")`` and ``format("rocketmq")`` is behind it: options, columns, sources, sinks, lookups.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from metaq.model import TopicPartition
from metaq_spark.offsets import Progress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from metaq_spark.columns.row_layout import RowLayout
    from metaq_spark.lag.unread import PartitionLag
    from metaq_spark.options.positions import Notation
    from metaq_spark.options.table import Use
    from metaq_spark.sink.backend import Sink
    from metaq_spark.source.backend import Cluster, Source


@dataclass(frozen=True, slots=True)
class Format:
    """``module`` has the backend. ``brokers_option``: by which a read finds its brokers; as ``--flag``, in ``syntax``,
    the tools do. ``brokers``: what that names, for their help."""

    module: str
    brokers_option: str
    flag: str
    syntax: str
    brokers: str


FORMATS: Final[Mapping[str, Format]] = {
    "metaq": Format(
        "metaq_spark.backends.metaq.backend", "brokers", "--brokers", "HOST:PORT,...", "all brokers of the topics"
    ),
    "rocketmq": Format(
        "metaq_spark.backends.rocketmq.backend",
        "nameServers",
        "--name-servers",
        "HOST:PORT;...",
        "the name servers of RocketMQ's brokers",
    ),
}
"""Every format, by its name."""


class LagLookup(Protocol):
    """Measures how far partitions are behind."""

    def lags(self, read_to: Progress, others: Iterable[TopicPartition] | None = ()) -> list[PartitionLag]:
        """The lag of every partition that ``read_to`` knows, and of ``others``, against what the brokers hold now.

        ``others`` = ``None``: all partitions of the topics that ``read_to`` knows.

        Raises:
            MetaqError: A broker could not be asked.
        """


class Backend(Protocol):
    """One format. Options are raw here, as Spark hands them over."""

    name: str
    """Of the format."""

    system: str
    """What messages call it."""

    notation: Notation
    """How its partitions and offsets are written."""

    def layout(self, raw: Mapping[str, str]) -> RowLayout:
        """The columns of a read, when what can be said before it is known whether it is a batch has been checked.

        Raises:
            OptionError: An option is wrong.
        """

    def source(self, raw: Mapping[str, str], use: Use) -> Source:
        """A read; nothing is asked yet. Raises as ``layout``."""

    def sink(self, raw: Mapping[str, str], use: Use, schema: StructType) -> Sink:
        """A write of a DataFrame with ``schema``.

        Raises:
            OptionError, ColumnError: Options or columns are wrong.
            MetaqError: A broker could not be asked, or does not take the topic.
        """

    def cluster(self, raw: Mapping[str, str]) -> Cluster:
        """The brokers, by the options that say how to reach them. Raises as ``layout``."""

    def lag_lookup(self, raw: Mapping[str, str]) -> LagLookup:
        """Lookups of lags, by the same options. Raises as ``layout``."""


def backend_named(name: str) -> Backend:
    """The backend of the format ``name``."""
    backend: Backend = importlib.import_module(FORMATS[name].module).BACKEND
    return backend


def format_of(progress: Progress) -> str:
    """The format of the source that ``progress`` is of, by the names of its partitions; MetaQ's if it has none."""
    first = next(iter(progress.offsets), None)
    return "rocketmq" if first is not None and isinstance(first.partition.broker, str) else "metaq"
