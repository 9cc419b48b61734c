"""Metrics of a real broker, scraped while it works and compared with what was done to it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, WireClient, run_broker_command, wait_until
from operated import ctl
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.process

XID = "XID:1:6162:63:query"


def scrape(port: int) -> dict[str, float]:
    """Return sample -> value; a sample is written as ``name{label=value,...}``."""
    with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)) as answer:
        text = answer.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def put(topic: str, index: int, body: bytes, key: str = "") -> bytes:
    return b"put %s %d %d 0 %s1\r\n%b" % (topic.encode(), index, len(body), f"{key} ".encode() if key else b"", body)


def work(client: WireClient) -> None:
    """Do something of everything; the numbers are those of the test below."""
    for number in range(10):
        assert client.result(put("orders", number % 2, b"x" * 100))[0] == 200
    for _ in range(3):
        assert client.result(put("late", 0, b"y" * 1000))[0] == 200
    assert client.result(put("orders", 9, b"z"))[0] == 500
    assert len(client.value(b"get orders g 0 0 1048576 1\r\n")) == 600
    assert client.result(b"get orders g 0 600 1048576 1\r\n")[0] == 404
    for request in (
        f"transaction {XID} null BEGIN 1\r\n".encode(),
        put("orders", 1, b"t" * 500, XID),
        f"transaction {XID} null PREPARE 3\r\n".encode(),
        b"transaction TX:s:1 null BEGIN 1\r\n",
        put("orders", 1, b"t" * 500, "TX:s:1"),
        b"transaction TX:s:1 null COMMIT_ONE_PHASE 3\r\n",
        b"transaction TX:s:2 null BEGIN 1\r\n",
        b"transaction TX:s:2 null ROLLBACK 1\r\n",
    ):
        assert client.result(request)[0] == 200, request


def test_every_figure_is_what_was_done(broker: RunningBroker, port: int) -> None:
    client = broker.client()
    work(client)
    found = scrape(port)
    expected = {
        "metaq_build_info{broker_id=7,version=0.1.0}": 1,
        "metaq_connections": 1,
        "metaq_connections_refused_total": 0,
        "metaq_put_messages_total": 16,
        "metaq_put_failed_messages_total": 1,
        "metaq_gets_total": 2,
        "metaq_get_misses_total": 1,
        "metaq_messages_in_total{topic=orders}": 11,
        "metaq_messages_in_total{topic=late}": 3,
        "metaq_throughput_in_bytes_total{topic=orders}": 10 * 120 + 520,
        "metaq_throughput_in_bytes_total{topic=late}": 3 * 1020,
        "metaq_throughput_out_bytes_total{topic=orders}": 600,
        "metaq_storage_size_bytes{topic=orders}": 10 * 120 + 520,
        "metaq_storage_messages{topic=orders}": 11,
        "metaq_storage_messages{topic=late}": 3,
        "metaq_partitions{topic=orders}": 2,
        "metaq_partitions{topic=late}": 1,
        "metaq_topic_number": 2,
        "metaq_segments": 3,
        "metaq_storage_flush_behind_bytes": 3 * 1020,
        "metaq_partitions_read_only": 0,
        "metaq_partitions_not_served": 0,
        "metaq_partitions_closed": 0,
        "metaq_quarantined_bytes": 0,
        "metaq_transactions_begun_total{kind=xa}": 1,
        "metaq_transactions_begun_total{kind=local}": 2,
        "metaq_transactions_committed_total": 1,
        "metaq_transactions_rolled_back_total": 1,
        "metaq_transactions_open": 1,
        "metaq_transactions_prepared": 1,
        "metaq_message_size_bytes_count": 14,
        "metaq_message_size_bytes_sum": 10 * 100 + 500 + 3 * 1000,
        "metaq_message_size_bytes_bucket{le=64.0}": 0,
        "metaq_message_size_bytes_bucket{le=256.0}": 10,
        "metaq_message_size_bytes_bucket{le=1024.0}": 14,
        "metaq_put_latency_seconds_count": 13,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert 10 <= found["metaq_storage_flush_seconds_count"] <= 20
    assert 0 < found["metaq_storage_flush_seconds_sum"] < 60
    assert found["metaq_transaction_journal_bytes"] > 500
    assert found[f"metaq_storage_disk_free_bytes{{path={broker.data}}}"] > 0
    assert found["process_open_fds"] > 10


def test_nothing_ever_goes_back_while_the_broker_works(broker: RunningBroker, port: int) -> None:
    """Scrapes from several threads under load: counters only grow, and a histogram's parts belong together."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def load() -> None:
        client = broker.client()
        while not stop.is_set():
            client.send(put("orders", 0, b"x" * 50) * 200)
            client.replies(200)
        client.close()

    def watch() -> None:
        try:
            before: dict[str, float] = {}
            for _ in range(15):
                now = scrape(port)
                falling = [name for name, value in before.items() if _only_grows(name) and now[name] < value]
                assert falling == []
                assert now["metaq_message_size_bytes_count"] == now["metaq_messages_in_total{topic=orders}"]
                assert now["metaq_message_size_bytes_sum"] == 50 * now["metaq_message_size_bytes_count"]
                before = now
        except BaseException as failure:
            failures.append(failure)

    loading = threading.Thread(target=load)
    loading.start()
    wait_until(lambda: "metaq_messages_in_total{topic=orders}" in scrape(port), "messages come")
    watching = [threading.Thread(target=watch) for _ in range(3)]
    for thread in watching:
        thread.start()
    for thread in watching:
        thread.join(DEADLINE_S)
    stop.set()
    loading.join(DEADLINE_S)
    assert failures == []


def _only_grows(name: str) -> bool:
    return re.search(r"_(total|count|bucket)(\{|$)", name) is not None and not name.startswith("process_")


def test_a_read_only_partition_and_a_deleted_topic_show(broker: RunningBroker, port: int) -> None:
    client = broker.client()
    work(client)
    assert ctl("--data", broker.data, "close", "late", "0").status == 0
    assert scrape(port)["metaq_partitions_closed"] == 1
    assert ctl("--data", broker.data, "delete", "late", "0").status == 0
    found = scrape(port)
    assert found["metaq_partitions_closed"] == 0
    assert "metaq_partitions{topic=late}" not in found
    assert found["metaq_messages_in_total{topic=late}"] == 3  # a counter does not forget


def test_status_reports_where_metrics_are(broker: RunningBroker, port: int) -> None:
    assert f"http://127.0.0.1:{port}/metrics\n" in ctl("--data", broker.data, "status").out


def test_without_the_key_there_is_no_port(ini: Path, port: int, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text().replace(f"metricsPort={port}", "metricsPort="))
    start_broker("start", "-f", ini)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_scrape_under_way_does_not_hold_up_the_stop(broker: RunningBroker, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as silent:
        silent.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert broker.stop() == 0


# ---- refusals

BLOCKED = "import sys; sys.modules['prometheus_client'] = None; from metaq_broker.cli import main; sys.exit(main())"


def start_blocked(ini: Path) -> tuple[int, str]:
    command = [sys.executable, "-c", BLOCKED, "start", "-f", str(ini)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.returncode, done.stderr


def test_the_missing_package_is_named_before_anything_is_opened(ini: Path, port: int) -> None:
    assert start_blocked(ini) == (
        1,
        f"metaq-broker: metricsPort={port} needs the package prometheus_client: pip install 'metaq-spark[metrics]', "
        "or set metricsPort=0\n",
    )
    assert not (ini.parent / "data").exists()


def test_without_metrics_the_package_is_not_needed(ini: Path, port: int) -> None:
    ini.write_text(ini.read_text().replace(f"metricsPort={port}", ""))
    command = [sys.executable, "-c", BLOCKED, "start", "-f", str(ini)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert "ready on" in process.stdout.readline()
        process.terminate()
        assert process.wait(DEADLINE_S) == 0


def test_a_taken_port_is_one_sentence(ini: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        done = run_broker_command("start", "-f", ini)
    expected = (
        f"metaq-broker: cannot listen on 127.0.0.1 port {port} for metrics (metricsPort): Address already in use\n"
    )
    assert (done.returncode, done.stderr) == (1, expected)
    assert not (ini.parent / "data").exists()
