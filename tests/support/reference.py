"""Writes the tables of the documentation that are made from the rows of the code.

    make reference

A page marks the place of a table with ``<!-- rows: NAME -->`` and ``<!-- end of rows -->``. A test of the docs fails
where a page shows another table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from metaq_broker.operate.config.keys import OUR_OWN, REQUIRED, WITHOUT_EFFECT, Key, keys_of
from metaq_broker.operate.config.replication import GregorConfig, SamsaConfig, SlaveConfig
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.operate.config.sections import SystemConfig, TopicConfig, ZooKeeperConfig
from metaq_broker.operate.control.commands import ACTIONS
from metaq_broker.operate.control.measures import DISK_FREE, METRICS
from metaq_broker.rocketmq.nameserver.config import NameServerConfig

from metaq_spark.backends.metaq import options as metaq_options
from metaq_spark.backends.metaq import sink as metaq_sink
from metaq_spark.backends.rocketmq import options as rocketmq_options
from metaq_spark.backends.rocketmq import sink as rocketmq_sink
from metaq_spark.columns import row_layout
from metaq_spark.columns.rocketmq import layout
from metaq_spark.columns.row_layout import Column
from metaq_spark.options.table import ANY, READ, WRITE, Option, Use
from metaq_spark.sink.columns import ColumnTypes

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
MARKED: Final = re.compile(r"<!-- rows: ([\w-]+) -->\n.*?<!-- end of rows -->\n", re.DOTALL)

Rows = Iterable[Sequence[str]]


def option_rows(options: Iterable[Option]) -> Rows:
    """Options of the connector."""
    yield "option", "for", "default", "meaning"
    for each in options:
        yield f"`{each.name}`", _uses(each), _default(each), each.doc


def _uses(option: Option) -> str:
    for words, uses in (("any", ANY), ("read", READ), ("write", WRITE)):
        if option.uses == uses:
            return words
    return ", ".join(each.value for each in Use if each in option.uses)


def _default(option: Option) -> str:
    if isinstance(option.default, str):
        return option.default or "none"
    return ", ".join(f"{text} ({each.value})" for each, text in option.default.items())


def column_rows(columns: Iterable[Column]) -> Rows:
    """Columns of a read."""
    yield "column", "type", "content"
    for each in columns:
        yield f"`{each.name}`", each.type.simpleString(), each.doc


def sink_column_rows(columns: ColumnTypes) -> Rows:
    """Columns of a write."""
    yield "column", "type", "content"
    for name, each in columns.items():
        yield f"`{name}`", each.spelled, each.doc


def key_rows(section: type, inherited: type | None = None) -> Rows:
    """Keys of a section of server.ini, without those that ``inherited`` has and those that change nothing."""
    yield "key", "default", "meaning"
    others = [key.name for key in keys_of(inherited)] if inherited is not None else []
    for key in keys_of(section):
        if key.kind != WITHOUT_EFFECT and key.name not in others:
            yield f"`{key.name}`" + " *" * (key.kind == OUR_OWN), _key_default(key), key.doc


def _key_default(key: Key) -> str:
    if key.default is REQUIRED:
        return "required"
    if key.shown or not key.default_text:
        return key.shown or "none"
    return f"`{key.default_text}`" if isinstance(key.default, str) else key.default_text


def action_rows() -> Rows:
    """Actions of ``metaq-broker ctl``."""
    yield "action", "does"
    for row in ACTIONS.values():
        yield f"`{' '.join((row.name, *(each.usage for each in row.arguments)))}`", row.doc


def request_rows() -> Rows:
    """The same as requests of the control socket."""
    yield "command", "arguments"
    for row in ACTIONS.values():
        yield f"`{row.name}`", ", ".join(each.request for each in row.arguments if each.request) or "none"


def metric_rows() -> Rows:
    """Metrics of a broker."""
    yield "metric", "type", "labels", "meaning"
    for each in (*METRICS, DISK_FREE):
        yield f"`{each.shown_name}`", each.kind, ", ".join(each.labels), each.text
    yield "`process_*`", "", "", "Memory, CPU time and open files of the process."


TABLES: Final[dict[str, Callable[[], Rows]]] = {
    "metaq-options": lambda: option_rows(metaq_options.OPTIONS),
    "rocketmq-options": lambda: option_rows(rocketmq_options.OPTIONS),
    "keys-topic": lambda: key_rows(TopicConfig),
    "keys-system": lambda: key_rows(SystemConfig, TopicConfig),
    "keys-zookeeper": lambda: key_rows(ZooKeeperConfig),
    "keys-rocketmq": lambda: key_rows(RocketmqConfig),
    "keys-name-server": lambda: key_rows(NameServerConfig),
    "keys-slave": lambda: key_rows(SlaveConfig),
    "keys-samsa": lambda: key_rows(SamsaConfig),
    "keys-gregor": lambda: key_rows(GregorConfig),
    "ctl": action_rows,
    "control-socket": request_rows,
    "metrics": metric_rows,
    "metaq-columns": lambda: column_rows(row_layout.COLUMNS),
    "rocketmq-columns": lambda: column_rows(layout.COLUMNS),
    "metaq-sink-columns": lambda: sink_column_rows(metaq_sink.SINK_COLUMNS),
    "rocketmq-sink-columns": lambda: sink_column_rows(rocketmq_sink.SINK_COLUMNS),
}


def markdown(rows: Rows) -> str:
    """The rows as a table, the first one as its head."""
    head, *others = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *others]
    return "".join(f"|{'|'.join(row)}|\n" if row[0] == "---" else f"| {' | '.join(row)} |\n" for row in lines)


def with_tables(page: str) -> str:
    """The page with each marked table as the code has it now."""

    def table(mark: re.Match[str]) -> str:
        return f"<!-- rows: {mark[1]} -->\n\n{markdown(TABLES[mark[1]]())}\n<!-- end of rows -->\n"

    return MARKED.sub(table, page)


def marked_pages() -> list[Path]:
    """The pages with such tables."""
    return [page for page in sorted(DOCS.glob("*.md")) if MARKED.search(page.read_text(encoding="utf-8"))]


def main() -> int:
    """Write all tables."""
    for page in marked_pages():
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
