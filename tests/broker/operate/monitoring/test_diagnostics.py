"""Lines of the broker's log: as text, as JSON, and how many of them."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
from fix_broker import StartBroker
from metaq_broker.clock import ManualClock
from metaq_broker.operate.monitoring.diagnostics import LINES_MAX, WINDOW_S, JsonFormatter, KeyValueFormatter, RateLimit

MOMENT = 1_769_860_800.1239


def record(
    message: str = "ready",
    level: int = logging.INFO,
    name: str = "metaq_broker.app",
    fields: dict[str, object] | None = None,
    failed: bool = False,
) -> logging.LogRecord:
    made = logging.LogRecord(name, level, __file__, 1, message, (), None)
    made.created = MOMENT
    if fields is not None:
        made.fields = fields
    if failed:
        try:
            raise ValueError("no")
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, ""),
        ({"a": 1, "b": "x:1"}, " a=1 b=x:1"),
        ({"a": "two words", "b": "", "c": "x=y"}, ' a="two words" b="" c="x=y"'),
        ({"a": 'say "no"\\', "b": "one\r\ntwo"}, ' a="say \\"no\\"\\\\" b="one\\r\\ntwo"'),
    ],
)
def test_text(fields: dict[str, object] | None, expected: str) -> None:
    assert KeyValueFormatter().format(record(fields=fields)) == f"2026-01-31T12:00:00.123Z INFO app: ready{expected}"


def test_json() -> None:
    line = JsonFormatter().format(record(fields={"a": 1, "p": Path("/x"), "level": 5, "t": "ü\n"}))
    assert "\n" not in line
    assert list(json.loads(line).items()) == [
        ("time", "2026-01-31T12:00:00.123Z"),
        ("level", "INFO"),
        ("source", "app"),
        ("event", "ready"),
        ("a", 1),
        ("p", "/x"),
        ("level_", 5),
        ("t", "ü\n"),
    ]


def test_a_traceback_is_part_of_the_event() -> None:
    text = KeyValueFormatter().format(record(failed=True))
    assert (text.splitlines()[1], text.splitlines()[-1]) == ("Traceback (most recent call last):", "ValueError: no")
    line = JsonFormatter().format(record(failed=True))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: no")


FRONTEND = "metaq_broker.text.session"


@pytest.mark.parametrize(
    ("name", "level", "limited"),
    [
        ("metaq_broker.app", logging.INFO, True),
        ("metaq_broker.app", logging.WARNING, False),
        ("metaq_broker.log.partitions.log_store", logging.ERROR, False),
        (FRONTEND, logging.INFO, True),
        (FRONTEND, logging.WARNING, True),
        ("metaq_broker.operate.control.server", logging.ERROR, True),
    ],
)
def test_what_is_limited(name: str, level: int, limited: bool) -> None:
    limit = RateLimit(ManualClock())
    written = sum(limit.filter(record(level=level, name=name)) for _ in range(LINES_MAX * 3))
    assert written == (LINES_MAX if limited else LINES_MAX * 3)
    assert limit.filter(record("another kind", level, name))


def test_the_next_line_says_how_many_were_left_out() -> None:
    clock = ManualClock()
    limit = RateLimit(clock)
    for _ in range(LINES_MAX + 7):
        limit.filter(record(name=FRONTEND))
    clock.advance(int(WINDOW_S * 1000))
    late = record(name=FRONTEND, fields={"peer": "x"})
    assert limit.filter(late)
    assert late.fields == {"peer": "x", "suppressed": 7}  # type: ignore[attr-defined]
    clock.advance(int(WINDOW_S * 1000))
    later = record(name=FRONTEND)
    assert limit.filter(later)
    assert not hasattr(later, "fields")


def test_many_kinds_take_no_more_memory_than_some() -> None:
    limit = RateLimit(ManualClock())
    for number in range(5000):
        assert limit.filter(record(f"kind {number}", name=FRONTEND))
    assert len(limit._windows) <= 1000


@pytest.mark.process
def test_a_broker_logs_start_and_stop_as_json(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--log-format", "json")
    client = broker.client()
    client.send(b"nonsense\r\n")
    assert client.rest() == b""
    assert broker.stop() == 0
    events = [json.loads(line) for line in broker.log_text().splitlines()]
    found = {event["event"]: event for event in events}
    ready = found["ready"]
    assert (ready["address"], ready["pid"], ready["partitions"]) == (str(broker.address), broker.process.pid, 0)
    assert re.search("nonsense", found["connection closed"]["reason"])
    assert found["connection closed"]["peer"].startswith("127.0.0.1:")
    assert list(found)[-1] == "stopped"


@pytest.mark.process
def test_noisy_clients_do_not_fill_the_log(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    for _ in range(LINES_MAX * 3):
        client = broker.client()
        client.send(b"nonsense\r\n")
        client.rest()
        client.close()
    assert broker.stop() == 0
    assert LINES_MAX <= broker.log_text().count("connection closed") <= 2 * LINES_MAX
