"""The command for consumer groups of RocketMQ's: reading as a member, lag, offsets that are set; the bundled broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fix_broker import wait_until

from metaq.cli.main import main
from metaq.client.rocketmq.client import RocketMQ
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), partitions=2) as made:
        yield made


@pytest.fixture
def run(broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run(*arguments: str) -> tuple[int, list[str], str]:
        status = main(["--cluster", f"rocketmq://{broker.name_servers}", *arguments])
        out, err = capfdbinary.readouterr()
        return status, out.decode().splitlines(), err.decode()

    return run


def test_a_group_reads_goes_on_and_is_set_back(run: Run, broker: BrokerProcess, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\nb\nc\nd\n")
    assert run("produce", "orders", str(lines))[0] == 0
    assert sorted(run("consume", "orders", "--group", "billing")[1]) == ["a", "b", "c", "d"]
    assert run("consume", "orders", "--group", "billing") == (0, [], "")
    assert run("groups")[1] == ["group", "billing"]
    run("produce", "orders", str(lines))
    (one,) = run("consume", "orders", "--group", "billing", "-n", "1")[1]
    assert one in "abcd"
    status, rows, _ = run("lag", "billing", "--json")
    behind = {(row["topic"], row["partition"]): row["messages_behind"] for row in map(json.loads, rows)}
    assert (status, behind["%RETRY%billing", "metaq:0"], sum(behind.values())) == (0, 0, 3)
    status, rows, note = run("reset", "billing", "orders", "--to", "latest", "-p", "metaq:1", "--json")
    assert (status, [json.loads(row)["to"] for row in rows]) == (0, [2])
    assert note == "nothing is changed; --execute does it\n"
    assert run("reset", "billing", "orders", "--to", "earliest", "--execute")[2] == "the offsets are set\n"
    assert len(run("consume", "orders", "--group", "billing")[1]) == 8


def test_what_cannot_be_done_is_said(run: Run, broker: BrokerProcess) -> None:
    assert run("consume", "nowhere", "--group", "g")[0] == 1
    assert "nowhere" in run("consume", "nowhere", "--group", "g")[2]
    run("produce", "busy", "/dev/null")
    with RocketMQ(broker.name_servers) as mq:
        mq.producer().send("busy", "x")
        with mq.consumer("reader", ["busy"], consumer_id="me") as consumer:
            wait_until(lambda: bool(consumer.fetch(timeout=0.2)), "it reads")
            status, _, error = run("reset", "reader", "busy", "--to", "earliest", "--execute")
            assert (status, error) == (
                2,
                "metaq: group 'reader' has running consumers, which would overwrite it: me\n",
            )
    status, _, error = run("reset", "reader", "busy", "--to", "9", "-p", "metaq:0")
    assert (status, error.startswith("metaq: busy/metaq:0: offset 9: expected 0..")) == (2, True)
    status, _, error = run("reset", "reader", "busy", "--to", "0", "-p", "metaq:7")
    there = ", ".join(f"metaq:{index}" for index in range(4))
    assert (status, error) == (2, f"metaq: topic 'busy' has no queue metaq:7; it has {there}\n")
