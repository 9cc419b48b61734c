"""The board for Grafana and the alerts for Prometheus: every figure in them exists, and a real Prometheus takes them.

The tests with a real Prometheus need its programs, as Debian's package ``prometheus`` has them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples import in_one_test
from fix_broker import StartBroker, wait_until, write_ini
from http_server import serving
from metaq_broker.operate.control.measures import DISK_FREE, METRICS

from metaq import MetaQ
from metaq.testing.ports import free_port

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD = DEPLOY / "grafana" / "metaq-board.json"
ALERTS = DEPLOY / "prometheus" / "metaq-alerts.yml"
OF_SPARK = re.compile(r"`(metaq_spark_\w+)`")
OF_PROCESS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}
NAME = re.compile(r"\b(?:up|(?:metaq|messaging|process)_[a-z_]+)\b(?=[\[{) ]|$)")
VARIABLES = {"$job": "metaq", "$instance": ".*", "$topic": ".*", "$__rate_interval": "1m"}

has_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool: apt-get install prometheus",
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def board_expressions() -> list[str]:
    found = []
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for variable, value in VARIABLES.items():
                text = text.replace(variable, value)
            found.append(text)
    return found


def known_names() -> set[str]:
    """Every name that a broker, the console, or the listener of a query serves."""
    from metaq_console.api.metrics import METRICS as OF_CONSOLE

    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text()
    names = {*OF_PROCESS, *OF_CONSOLE, *OF_SPARK.findall(page)}
    for metric in (*METRICS, DISK_FREE):
        names.add(f"{metric.name}_bucket" if metric.kind == "histogram" else metric.shown_name)
    return names


@in_one_test("text", [*board_expressions(), *(rule["expr"] for rule in rules())])
def test_every_figure_exists(text: str) -> None:
    plain = re.sub(r"by \([^)]*\)|on \([^)]*\)|\{[^}]*\}", "", text)
    used = set(NAME.findall(plain))
    assert used, text
    assert used - known_names() == set()


@in_one_test("rule", rules())
def test_every_alert_has_its_reason(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "reason"}
    assert rule["annotations"]["reason"].endswith(".")


def test_panels_do_not_overlap_and_have_a_text() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"]


@dataclass(frozen=True)
class Case:
    """Series of a minute's steps, ``NAME VALUES`` each: an alert fires after ``minutes`` with some, not with others."""

    fires: tuple[str, ...]
    quiet: tuple[str, ...]
    minutes: int = 40


def broker(name: str, values: str, labels: str = "") -> str:
    return f'{name}{{job="metaq",instance="one"{labels}}} {values}'


def gauge(name: str, bad: str = "1", good: str = "0", labels: str = "", minutes: int = 40) -> Case:
    steps = minutes + 1
    return Case((broker(name, f"{bad}x{steps}", labels),), (broker(name, f"{good}x{steps}", labels),), minutes)


PATH = ',path="/data"'
GROUP = ',messaging_system="metaq",messaging_consumer_group_name="g"'
LATENCY = ("metaq_put_latency_seconds_bucket", ',le="0.1"', ',le="1"', ',le="+Inf"')
CASES = {
    "MetaqBrokerDown": gauge("up", bad="0", good="1"),
    "MetaqBrokerRestarts": gauge("metaq_uptime_seconds", bad="0 60 120 0 60 0 60 0 60 120 180 240 300+60", good="0+60"),
    "MetaqPutsRefused": gauge("metaq_put_failed_messages_total", bad="0+10", good="5+0"),
    "MetaqPutsSlow": Case(
        tuple(broker(LATENCY[0], f"0+{step}x40", le) for le, step in zip(LATENCY[1:], (0, 60, 60), strict=True)),
        tuple(broker(LATENCY[0], f"0+{step}x40", le) for le, step in zip(LATENCY[1:], (60, 60, 60), strict=True)),
    ),
    "MetaqFlushBehind": gauge("metaq_storage_flush_behind_bytes", bad="100000000", good="1000"),
    "MetaqConnectionsRefused": gauge("metaq_connections_refused_total", bad="0+1", good="7+0"),
    "MetaqDiskLow": gauge("metaq_storage_disk_low", labels=PATH),
    "MetaqDiskFillsUp": gauge(
        "metaq_storage_disk_free_bytes", bad="1000000-1000", good="1000000-10", labels=PATH, minutes=500
    ),
    "MetaqFolderGone": gauge("metaq_storage_folder_gone", labels=PATH),
    "MetaqDataLost": gauge("metaq_lost_bytes", bad="100"),
    "MetaqQuarantined": gauge("metaq_quarantined_bytes", bad="0+5", good="17+0"),
    "MetaqPartitionsOut": gauge("metaq_partitions_not_served", bad="2"),
    "MetaqRetentionFails": gauge("metaq_retention_failures_total", bad="0+1", good="3+0"),
    "MetaqClockDoubted": gauge("metaq_clock_doubted"),
    "MetaqReplicationBroken": gauge("metaq_replication_broken"),
    "MetaqReplicationLag": gauge("metaq_replication_lag_bytes", bad="100000000", good="4000000"),
    "MetaqReplicationRefused": gauge("metaq_replication_partitions_refused"),
    "MetaqNotRegistered": gauge("metaq_zookeeper_registered", bad="0", good="1"),
    "MetaqTransactionsPrepared": gauge("metaq_transactions_prepared", bad="3", good="0 1 0 2 0", minutes=90),
    "MetaqStateNearLimit": Case(
        (broker("metaq_rocketmq_state_bytes", "90x40"), broker("metaq_rocketmq_state_limit_bytes", "100x40")),
        (broker("metaq_rocketmq_state_bytes", "10x40"), broker("metaq_rocketmq_state_limit_bytes", "100x40")),
    ),
    "MetaqGroupFallsBehind": gauge("messaging_consumer_group_lag", bad="10+10", good="100000-10", labels=GROUP),
    "MetaqGroupStopped": Case(
        (
            broker("messaging_consumer_group_members", "0x40", GROUP),
            broker("messaging_consumer_group_lag", "9x40", GROUP),
        ),
        (
            broker("messaging_consumer_group_members", "1x40", GROUP),
            broker("messaging_consumer_group_lag", "9x40", GROUP),
        ),
    ),
    "MetaqQueryFallsBehind": gauge(
        "metaq_spark_lag_bytes",
        bad="10+10",
        good="100000-10",
        labels=',query="q",topic="t",partition="0-0"',
        minutes=70,
    ),
    "MetaqQueryLate": gauge(
        "metaq_spark_lag_seconds", bad="900", good="3", labels=',query="q",topic="t",partition="0-0"'
    ),
}
"""What each alert is tested with."""


def promtool_tests() -> dict[str, Any]:
    """The cases in promtool's form: how many alerts of a name fire at a time."""
    tests = []
    for name, case in CASES.items():
        for series, fired in ((case.fires, True), (case.quiet, False)):
            parts = [one.rpartition("} ") for one in series]
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": f"{head}}}", "values": values} for head, _, values in parts],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                            "eval_time": f"{case.minutes}m",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fired else [],
                        }
                    ],
                }
            )
    return {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}


def test_each_alert_has_its_case() -> None:
    assert CASES.keys() == {rule["alert"] for rule in rules()}


@has_prometheus
@pytest.mark.process
def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump(promtool_tests()))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


class RunningPrometheus:
    """A Prometheus that scrapes a broker and a console."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str, **values: str) -> Any:
        query = f"?{urllib.parse.urlencode(values)}" if values else ""
        with urllib.request.urlopen(f"{self._url}{path}{query}", timeout=60) as answer:
            return json.load(answer)["data"]

    def is_scraping(self) -> bool:
        with suppress(OSError):
            targets = self.get("targets")["activeTargets"]
            return len(targets) == 2 and all(one["health"] == "up" for one in targets)
        return False


@pytest.mark.long
@has_prometheus
@pytest.mark.process
@pytest.mark.slow
def test_a_real_prometheus_takes_them(start_broker: StartBroker, tmp_path: Path) -> None:
    metrics_port, port = free_port(), free_port()
    broker = start_broker("start", "-f", write_ini(tmp_path / "one", metricsPort=metrics_port))
    with MetaQ(str(broker.address)) as mq:
        mq.producer().send("orders", "one tea")
        with mq.consumer("billing", ["orders"]) as consumer:
            consumer.fetch(timeout=5)
    with serving("--cluster", str(broker.address)) as console:
        targets = {"metaq": f"127.0.0.1:{metrics_port}", "metaq-console": console.removeprefix("http://")}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()
            ],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            *("prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with open(tmp_path / "prometheus.log", "w") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                _check(RunningPrometheus(port))
            finally:
                process.terminate()
                process.wait(60)


def _check(prometheus: RunningPrometheus) -> None:
    wait_until(prometheus.is_scraping, "both are scraped")

    def evaluated() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: {rule["health"] for rule in evaluated()} == {"ok"}, "all rules are evaluated")
    assert [rule["name"] for rule in evaluated() if rule["state"] != "inactive"] == []
    for text in board_expressions():
        assert prometheus.get("query", query=text)["resultType"] in ("vector", "scalar")
    wait_until(lambda: prometheus.get("query", query="messaging_consumer_group_lag")["result"], "the lag is there")
    for name in ("metaq_messages_in_total", "metaq_put_latency_seconds_bucket", "metaq_storage_disk_free_bytes"):
        assert prometheus.get("query", query=name)["result"], name
