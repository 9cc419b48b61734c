"""Runs Apache's rocketmq-exporter at RocketMQ and at this project's broker, and compares what it exposes.

Each name of a metric is a test. On the original it passes if the exporter exposes it. On ours it passes if it has the
same series there, and the same values where these follow from the messages alone.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from metaq.testing.ports import free_port
from peers.jvm import JavaServer, fresh
from peers.rocketmq.clients import client
from peers.rocketmq.conversation import Conversation
from peers.rocketmq.programs import QUICK
from peers.suites.filled_server import GROUP, TOPIC, filled, served
from peers.suites.results import Outcome, Result, Results

MAIN: Final = "org.apache.rocketmq.exporter.RocketMQExporterApplication"
TASKS: Final = (
    "collectTopicOffset",
    "collectProducer",
    "collectConsumerOffset",
    "collectBrokerStatsTopic",
    "collectBrokerStats",
    "collectBrokerRuntimeStats",
)
"""What the exporter does from time to time: once a minute, here every few seconds."""

CRON: Final = "0/5 * * * * ?"
STEADY_S: Final = 70.0
"""Names of metrics are complete when none was added for so long: RocketMQ has some figures of whole minutes only."""
COLLECT_DEADLINE_S: Final = 300.0
ASK_S: Final = 5.0
REFUSED: Final = "fail-body"
"""A message that the group refuses until it is a dead letter."""

SAME_VALUES: Final = frozenset(
    {
        "rocketmq_broker_commitlog_diff",
        "rocketmq_consumer_offset",
        "rocketmq_group_consume_total_offset",
        "rocketmq_group_count",
        "rocketmq_group_diff",
        "rocketmq_group_dlqdiff",
        "rocketmq_group_retrydiff",
        "rocketmq_producer_count",
        "rocketmq_producer_offset",
        "rocketmq_topic_dlq_offset",
        "rocketmq_topic_retry_offset",
    }
)
"""Metrics whose values follow from the messages and the clients."""

Series = Mapping[str, float]
"""Values by labels, as text."""

_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TOPICS: Final = (TOPIC, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "")
_OF_A_RUN: Final = re.compile(r"127\.0\.0\.1:\d+|[\d.]+@\d+#\d+|^\d{13}$")
"""What is different in each run: ports, ids of clients, times."""


def metrics_of(text: str) -> dict[str, Series]:
    """Return the series of the messages of the run by name, without what differs from run to run."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if line.startswith("#") or not (sample := _SAMPLE.match(line)):
            continue
        labels = {key: _OF_A_RUN.sub("...", value) for key, value in _LABEL.findall(sample[2] or "")}
        if labels.get("topic", "") in _TOPICS:
            shown = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            found.setdefault(sample[1], {})[shown] = float(sample[3])
    return dict(found)


def compared(original: Mapping[str, Series], other: Mapping[str, Series]) -> Results:
    """Return the results of ``other``, a test for each name on either side."""
    return {name: _compared(name, original.get(name, {}), other.get(name, {})) for name in {*original, *other}}


def _compared(name: str, original: Series, other: Series) -> Result:
    if original.keys() != other.keys():
        missing, more = sorted(original.keys() - other.keys()), sorted(other.keys() - original.keys())
        return Result(Outcome.FAILED, f"series that are missing: {missing}; that the original has not: {more}")
    if name in SAME_VALUES and original != other:
        return Result(Outcome.FAILED, f"{dict(original)} on the real one, {dict(other)} on ours")
    return Result(Outcome.PASSED)


def compare(version: str, class_path: str, ours: bool) -> Results:
    """Return the results of the exporter on one side, with RocketMQ of a release as the original."""
    original = metrics_of(exposed(version, class_path, ours=False))
    if not ours:
        return {name: Result(Outcome.PASSED) for name in original}
    return compared(original, metrics_of(exposed(version, class_path, ours=True)))


@cache
def exposed(version: str, class_path: str, ours: bool) -> str:
    """Return what the exporter exposes of one side; computed once."""
    with TemporaryDirectory(prefix="metaq-exporter-") as name, ExitStack() as clients:
        folder = Path(name)
        name_server, broker = clients.enter_context(served(version, ours, folder))
        filled(name_server, broker, folder, clients)
        _make_a_dead_letter(name_server, folder, clients)
        return _scrape(class_path, name_server, fresh(folder / "exporter"))


def _make_a_dead_letter(name_server: str, folder: Path, clients: ExitStack) -> None:
    java = client("java-4.9.7")
    # It accepts the message, which a push consumer of this program refuses: a group that does has dead letters, too.
    letters = Conversation(java, name_server, folder, role="lite", group=f"{GROUP}-letters", topic=f"%DLQ%{GROUP}")
    sender = clients.enter_context(Conversation(java, name_server, folder, role="producer", group="producers-2"))
    sender.ready().send(TOPIC, REFUSED)
    with letters:
        letters.wait_for(lambda: REFUSED in letters.bodies(), "the dead letter")


def _scrape(class_path: str, name_server: str, folder: Path) -> str:
    """Run the exporter until the names that it exposes are complete; return all that it exposes then."""
    port, grpc_port = free_port(), free_port()
    settings = {
        "server.port": port,
        "server.address": "127.0.0.1",
        "grpc.server.port": grpc_port,
        "rocketmq.config.namesrvAddr": name_server,
        **{f"task.{task}.cron": CRON for task in TASKS},
    }
    arguments = [f"--{key}={value}" for key, value in settings.items()]
    command = [*QUICK, f"-Duser.home={folder}", "-cp", class_path, MAIN, *arguments]
    address = f"http://127.0.0.1:{port}/metrics"
    exporter = JavaServer("rocketmq-exporter", folder, port, command, lambda: _asked(address) is not None)
    exporter.start()
    try:
        return _when_complete(lambda: _asked(address) or "")
    finally:
        exporter.kill()


def _when_complete(ask: Callable[[], str]) -> str:
    """Ask until no name has been added for a while.

    Raises:
        RuntimeError: That takes too long.
    """
    names: set[str] = set()
    began = changed = time.monotonic()
    while time.monotonic() < began + COLLECT_DEADLINE_S:
        text = ask()
        if not names >= set(metrics_of(text)):
            names |= set(metrics_of(text))
            changed = time.monotonic()
        if names and time.monotonic() > changed + STEADY_S:
            return text
        time.sleep(1)
    raise RuntimeError(f"the exporter still adds metrics: {sorted(names)}")


def _asked(address: str) -> str | None:
    try:
        with urllib.request.urlopen(address, timeout=ASK_S) as answer:
            return bytes(answer.read()).decode()
    except OSError:
        return None
