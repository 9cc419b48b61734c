"""The command metaq-spark checkpoint with a query that reads RocketMQ: queues, beside what the brokers have."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoints import files, offset, plan, query
from rocketmq_harness import RocketMQHarness

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def harness() -> Iterator[RocketMQHarness]:
    """``orders`` has three messages in queue 0 of broker-a and one in queue 1 of broker-b."""
    with RocketMQHarness() as harness:
        harness.put("a0", b"1", b"2", b"3")
        harness.put("b1", b"4")
        yield harness


@pytest.fixture
def servers(harness: RocketMQHarness) -> list[str]:
    addresses = ";".join(map(str, harness.cluster.name_servers))
    return ["--name-servers", addresses, "--option", "retryIntervalMs=5"]


def topics_of(folder: Path, batch: int) -> dict[str, dict[str, int]]:
    line = (folder / "offsets" / str(batch)).read_text().splitlines()[2]
    found: dict[str, dict[str, int]] = json.loads(line)["topics"]
    return found


def test_show_beside_the_brokers(command: Command, servers: list[str], tmp_path: Path) -> None:
    folder = query(tmp_path / "ck", offset(orders={"broker-a:0": 1, "broker-a:1": 0, "broker-b:0": 0}))
    plan(folder, 1, offset(orders={"broker-a:0": 2, "broker-a:1": 0, "broker-b:0": 0}))
    status, out, _ = command("checkpoint", "show", folder, *servers)
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if "orders/" in line}
    assert status == 0
    assert rows["orders/broker-a:0"][:2] == ["1", "2"]
    assert rows["orders/broker-a:0"][2:4] == ["[0,", "3)"]
    assert rows["orders/broker-b:1"][-1] == "new"
    tree = json.loads(command("checkpoint", "show", folder, *servers, "--json")[1])
    lags = {each["partition"]: each["lag_messages"] for each in tree["sources"][0]["partitions"]}
    assert lags == {"broker-a:0": 2, "broker-a:1": 0, "broker-b:0": 0, "broker-b:1": 1}


def test_show_without_name_servers_and_beside_brokers_of_the_other_system(command: Command, tmp_path: Path) -> None:
    folder = query(tmp_path / "ck", offset(orders={"broker-a:0": 1}))
    status, out, _ = command("checkpoint", "show", folder)
    assert (status, [line.split() for line in out.splitlines()][-1]) == (0, ["orders/broker-a:0", "1", "-"])
    status, _, err = command("checkpoint", "move", folder, "--brokers", "127.0.0.1:1", "--to", "earliest")
    assert (status, "its sources that read MetaQ are: none" in err) == (1, True)


def test_move_and_undo(command: Command, servers: list[str], tmp_path: Path) -> None:
    folder = query(tmp_path / "ck", offset(orders={"broker-a:0": 3, "broker-b:1": 1}))
    before = files(folder)
    status, out, _ = command("checkpoint", "move", folder, *servers, "--to", "earliest")
    assert (status, files(folder)) == (0, before)
    assert "orders/broker-a:0" in out
    assert command("checkpoint", "move", folder, *servers, "--to", "earliest", "--yes")[0] == 0
    moved = topics_of(folder, 1)["orders"]
    assert (moved["broker-a:0"], moved["broker-b:1"]) == (0, 0)
    _, out, _ = command("checkpoint", "undo", folder, "--yes")
    assert "Done: offsets/1 was removed" in out
    assert files(folder) == before


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        (["--to", "latest"], {"broker-a:0": 3, "broker-b:1": 1}),
        (["--to", "latest", "--topic", "orders", "--partition", "broker-a:0"], {"broker-a:0": 3, "broker-b:1": 0}),
        (["--to", '{"orders": {"broker-a:0": 2}}'], {"broker-a:0": 2, "broker-b:1": 0}),
        (["--to-time", "1970-01-01T00:00:00Z"], {"broker-a:0": 0, "broker-b:1": 0}),
        (["--to-time", str(int(time.time() * 1000) + 3_600_000)], {"broker-a:0": 3, "broker-b:1": 1}),
        (["--to-batch", "0"], {"broker-a:0": 1, "broker-b:1": 0}),
    ],
    ids=["latest", "one queue", "offsets", "early time", "late time", "batch"],
)
def test_where_a_query_can_be_moved_to(
    command: Command, servers: list[str], tmp_path: Path, to: list[str], wanted: dict[str, int]
) -> None:
    batches = [offset(orders={"broker-a:0": each, "broker-b:1": 0}) for each in (1, 2)]
    folder = query(tmp_path / "ck", *batches)
    status, _, err = command("checkpoint", "move", folder, *servers, *to, "--yes")
    assert (status, err) == (0, "")
    moved = topics_of(folder, 2)["orders"]
    assert {queue: moved[queue] for queue in wanted} == wanted


def test_the_query_goes_on_at_the_new_position(
    harness: RocketMQHarness, command: Command, servers: list[str], tmp_path: Path
) -> None:
    reader = harness.stream(startingOffsets="earliest")
    position, read = harness.drained(reader)
    assert read == [b"1", b"2", b"3", b"4"]
    folder = query(tmp_path / "ck", json.dumps(position))
    assert command("checkpoint", "move", folder, *servers, "--to", '{"orders": {"broker-a:0": 1}}', "--yes")[0] == 0
    moved = json.loads((folder / "offsets" / "1").read_text().splitlines()[2])
    harness.restart()
    assert harness.drained(harness.stream(), moved)[1] == [b"2", b"3"]


@pytest.mark.parametrize(
    ("to", "status", "says"),
    [
        (["--to", '{"orders": {"broker-a:0": 99}}'], 1, "99"),
        (["--to", '{"orders": {"0-0": 1}}'], 2, "BROKER_NAME:QUEUE_ID"),
        (["--to", "latest", "--topic", "orders", "--partition", "0-0"], 2, "BROKER_NAME:QUEUE_ID"),
        (["--to", "latest", "--topic", "nosuch"], 1, "no partition of the query is selected"),
    ],
    ids=["beyond the end", "a partition of MetaQ", "the same as a choice", "an unknown topic"],
)
def test_what_is_refused(
    command: Command, servers: list[str], tmp_path: Path, to: list[str], status: int, says: str
) -> None:
    folder = query(tmp_path / "ck", offset(orders={"broker-a:0": 1}))
    before = files(folder)
    found, _, err = command("checkpoint", "move", folder, *servers, *to, "--yes")
    assert found == status
    assert says in err
    assert files(folder) == before


def test_a_name_server_that_is_away(command: Command, tmp_path: Path) -> None:
    folder = query(tmp_path / "ck", offset(orders={"broker-a:0": 1}))
    arguments = ("--name-servers", "127.0.0.1:1", "--option", "retries=0")
    status, _, err = command("checkpoint", "show", folder, *arguments)
    assert (status, "127.0.0.1:1" in err) == (1, True)
