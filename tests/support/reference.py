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

from metaq_broker.operate.config.http import HttpConfig
from metaq_broker.operate.config.keys import OUR_OWN, REQUIRED, WITHOUT_EFFECT, Key, keys_of
from metaq_broker.operate.config.replication import GregorConfig, PairConfig, SamsaConfig, SlaveConfig
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.operate.config.sections import SystemConfig, TopicConfig, ZooKeeperConfig
from metaq_broker.operate.control.commands import ACTIONS
from metaq_broker.operate.control.measures import DISK_FREE, METRICS
from metaq_broker.rocketmq.nameserver.config import NameServerConfig

from metaq.cli.commands import all_commands
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.headers import REQUESTS, RESPONSES
from metaq.protocols.remoting.headers.fields import Header, Request, fields_of
from metaq.statuses import STATUSES
from metaq_spark.backends.metaq import options as metaq_options
from metaq_spark.backends.metaq import sink as metaq_sink
from metaq_spark.backends.rocketmq import options as rocketmq_options
from metaq_spark.backends.rocketmq import sink as rocketmq_sink
from metaq_spark.columns import row_layout
from metaq_spark.columns.rocketmq import layout
from metaq_spark.columns.row_layout import Column
from metaq_spark.diagnosis.rules.table import RULES
from metaq_spark.diagnosis.verdict import MEANINGS
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


def request_code_rows() -> Rows:
    """Requests of RocketMQ's protocol."""
    yield "code", "name", "needs", "fields", "fields of the answer"
    for code, header in usual_requests():
        codes = ", ".join(str(each) for each in (code, *header.OTHER_CODES))
        yield codes, name_of(code).partition(" ")[0], header.RIGHT.value, _fields(header), _fields(RESPONSES.get(code))


def usual_requests() -> list[tuple[int, type[Request]]]:
    """The classes of requests, each with the code that is usual."""
    return sorted({(header.CODE, header) for header in REQUESTS.values()}, key=lambda each: each[0])


def _fields(header: type[Header] | None) -> str:
    return ", ".join(
        f"{field.name}{f' ({field.short})' if field.short else ''}: {field.type.name}{'' if field.required else '?'}"
        for field in (() if header is None else fields_of(header))
    )


def body_rows() -> Rows:
    """Bodies of RocketMQ's requests and their answers."""
    yield "request", "body of the request", "body of the answer"
    for code, header in usual_requests():
        if header.BODY or header.ANSWER_BODY:
            yield str(code), _body(header.BODY), _body(header.ANSWER_BODY)


def _body(text: str) -> str:
    name, comma, rest = text.partition(",")
    return f"`{name}`{comma}{rest}" if name.isidentifier() and name[:1].isupper() else text


def response_code_rows() -> Rows:
    """Codes of answers of RocketMQ's protocol."""
    yield "code", "name", "meaning", "a client"
    for code in ResponseCode:
        does = {
            "has sent its message": code.is_stored,
            "sends it to another broker": code.tries_elsewhere,
            "tries again": code.is_temporary,
            "looks for another server": code.is_away,
        }
        yield str(int(code)), code.name, code.meaning, ", ".join(what for what, is_so in does.items() if is_so)


def command_rows() -> Rows:
    """Commands of ``metaq``."""
    yield "command", "does"
    for row in all_commands().values():
        yield f"`{row.name}`", row.help


def command_option_rows(name: str) -> Rows:
    """Options of a command of ``metaq``."""
    yield "option", "does"
    for each in all_commands()[name].options():
        yield each.usage, each.doc


def ability_rows() -> Rows:
    """What each kind of server can do."""
    yield "command", "bundled broker", "Java MetaQ broker", "RocketMQ 4.9, 5.x; bundled broker as RocketMQ"
    for row in all_commands().values():
        if row.name != "completion":
            yield from row.abilities


def operation_rows() -> Rows:
    """Operations of the JSON API."""
    from metaq_console.api.table import OPERATIONS  # its extra is not installed everywhere

    yield "operation", "does"
    for each in OPERATIONS:
        needs = " (needs `--write`)" if each.changes else ""
        yield f"`{each.method} {each.path}`", f"{each.text.partition('. ')[0].rstrip('.')}{needs}"


def status_rows() -> Rows:
    """Status codes of MetaQ's protocol."""
    yield "code", "meaning", "sent for"
    for each in STATUSES.values():
        yield str(each.code), each.meaning, each.sent_for


def verdict_rows() -> Rows:
    """Verdicts of a diagnosis."""
    yield "verdict", "means", "exit status"
    for verdict, (meaning, code) in MEANINGS.items():
        yield f"`{verdict}`", meaning, str(code)


def rule_rows() -> Rows:
    """Rules of a diagnosis."""
    yield "rule", "what is the case", "needs", "advice"
    for rule in sorted(RULES.values(), key=lambda each: (each.id[0], int(each.id[1:]))):
        advice = re.sub(r"\{\w+\}", "…", rule.advice)
        yield rule.id, rule.title, ", ".join(rule.needs) or "nothing", advice


TABLES: Final[dict[str, Callable[[], Rows]]] = {
    "metaq-options": lambda: option_rows(metaq_options.OPTIONS),
    "rocketmq-options": lambda: option_rows(rocketmq_options.OPTIONS),
    "keys-topic": lambda: key_rows(TopicConfig),
    "keys-system": lambda: key_rows(SystemConfig, TopicConfig),
    "keys-zookeeper": lambda: key_rows(ZooKeeperConfig),
    "keys-rocketmq": lambda: key_rows(RocketmqConfig),
    "keys-http": lambda: key_rows(HttpConfig),
    "operations": operation_rows,
    "keys-name-server": lambda: key_rows(NameServerConfig),
    "keys-slave": lambda: key_rows(SlaveConfig),
    "keys-samsa": lambda: key_rows(SamsaConfig),
    "keys-gregor": lambda: key_rows(GregorConfig),
    "keys-pair": lambda: key_rows(PairConfig),
    "ctl": action_rows,
    "control-socket": request_rows,
    "metrics": metric_rows,
    "requests": request_code_rows,
    "bodies": body_rows,
    "responses": response_code_rows,
    "statuses": status_rows,
    "commands": command_rows,
    "options-produce": lambda: command_option_rows("produce"),
    "options-consume": lambda: command_option_rows("consume"),
    "options-dashboard": lambda: command_option_rows("dashboard"),
    "abilities": ability_rows,
    "verdicts": verdict_rows,
    "rules": rule_rows,
    "metaq-columns": lambda: column_rows((*row_layout.COLUMNS, *row_layout.MORE_COLUMNS)),
    "rocketmq-columns": lambda: column_rows((*layout.COLUMNS, *layout.MORE_COLUMNS)),
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
