"""``metaq bench`` against the bundled broker in a thread, and a scripted RocketMQ cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from local_servers import broker_thread

from metaq.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, main
from metaq.client.metaq import MetaQ
from metaq.errors import DataMissing, SendFailed
from metaq.model import Address
from metaq.operate import bench
from metaq.operate.bench import Load, Measured
from metaq.testing.rocketmq_server import ScriptedCluster


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with broker_thread(tmp_path_factory.mktemp("bench"), numPartitions=2) as address:
        yield address


def measured(out: str) -> dict[str, float]:
    row: dict[str, float] = json.loads(out)
    return row


@pytest.mark.parametrize("more", [(), ("--batch", "7"), ("--connections", "3", "--batch", "10", "--rate", "100000")])
def test_what_is_put_is_there_and_is_got(
    address: Address, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    topic = f"bench-{len(more)}"
    given = ["--cluster", str(address), "bench"]
    assert main([*given, "put", topic, "-n", "100", "--size", "1KiB", *more, "--json"]) == 0
    put = measured(capsys.readouterr().out)
    assert (put["does"], put["messages"]) == ("put", 100)
    assert 0 < put["p50_ms"] <= put["p90_ms"] <= put["p99_ms"] <= put["p99.9_ms"] <= put["max_ms"]
    assert put["mib_per_s"] == pytest.approx(100 / 1024 / put["seconds"])
    with MetaQ(str(address)) as mq:
        assert [len(message.data) for message in mq.browse(topic)] == [1024] * 100
    assert main([*given, "get", topic, "--json"]) == 0
    assert measured(capsys.readouterr().out)["messages"] == 100
    assert main([*given, "get", topic, "--count", "10", "--batch", "5", "--json"]) == 0
    assert 10 <= measured(capsys.readouterr().out)["messages"] <= 100


def test_rocketmq(cluster: ScriptedCluster, rocketmq: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--cluster", rocketmq, "bench"]
    assert main([*given, "put", "orders", "-n", "50", "--batch", "8", "--connections", "2"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["does", "messages", "messages_per_s"]
    assert row.split()[:2] == ["put", "50"]
    assert main([*given, "get", "orders", "--json"]) == 0
    assert measured(capsys.readouterr().out)["messages"] == 50


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["put", "t", "-n", "0"], "--count 0: expected a number, 1.."),
        (["put", "t", "--size", "x"], "--size x: "),
        (["put", "t", "--connections", "1001"], "--connections 1001: expected a number, 1..1000"),
        (["put", "t", "--batch", "-1"], "--batch -1: "),
        (["get", "t", "--rate", "fast"], "--rate fast: "),
    ],
)
def test_wrong_arguments(address: Address, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert main(["--cluster", str(address), "bench", *arguments]) == EXIT_USAGE
    assert says in capsys.readouterr().err


def test_a_message_that_the_client_refuses(
    rocketmq_memory: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    rocketmq_memory.create_topic("orders")
    given = ["--cluster", "rocketmq://" + ",".join(map(str, rocketmq_memory.name_servers)), "bench"]
    assert main([*given, "put", "orders", "-n", "2", "--size", "17MiB"]) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[:2] == ["put", "0"]
    assert err.startswith("metaq: the body has 17825792 bytes, and broker 'broker-a' takes at most")


def test_less_stored_than_acknowledged_is_an_error(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STORED_S", 0.01)
    monkeypatch.setattr(bench, "_describe", lambda mq, topic: [])
    with pytest.raises(DataMissing, match="less is stored than was acknowledged"):
        bench.put(lambda: MetaQ(str(address)), Load(topic="lost", count=1))


def test_a_failure_ends_it_and_what_was_measured_is_shown(
    address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = SendFailed("failing", "the broker is away", True, ())
    begun = Measured(messages=3, bytes=300, seconds=1.0, cpu_s=0.1, latencies=[0.001], error=error)
    monkeypatch.setattr(bench, "put", lambda connect, load, progress: begun)
    assert main(["--cluster", str(address), "bench", "put", "failing"]) == EXIT_FAILED
    out, err = capsys.readouterr()
    assert "the broker is away" in err
    assert out.splitlines()[1].split()[:2] == ["put", "3"]


def test_ctrl_c_shows_what_was_measured(
    address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "metaq-bench":
            join(thread, 0.2)
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    assert main(["--cluster", str(address), "bench", "put", "long", "-n", "100000000", "--json"]) == EXIT_INTERRUPTED
    assert 0 < measured(capsys.readouterr().out)["messages"] < 100_000_000


def test_percentiles() -> None:
    row = Measured(messages=4, bytes=4, seconds=1.0, cpu_s=1.0, latencies=[1.0, 2.0, 3.0, 4.0])
    assert [row.percentile(percent) for percent in (0, 50, 99, 100)] == [1.0, 3.0, 4.0, 4.0]
    assert Measured(messages=0, bytes=0, seconds=1.0, cpu_s=1.0, latencies=[]).percentile(50) is None
