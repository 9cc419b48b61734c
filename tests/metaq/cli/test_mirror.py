"""``metaq mirror`` in all directions, stopped and gone on with, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_broker import wait_until

from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Address, Message, Partition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE
from metaq.protocols.text.commands import Command, Put, PutBatch
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

Run = Callable[..., tuple[int, str, str]]

HERE, THERE = Address("127.0.0.1", 8123), Address("127.0.0.1", 8124)
A0, A1 = Partition("broker-a", 0), Partition("broker-a", 1)


@pytest.fixture
def two(memory: dict[Address, MemoryBroker]) -> tuple[MemoryBroker, MemoryBroker]:
    """A broker with two partitions of "orders", ten messages in each, and an empty one with three."""
    memory[HERE], memory[THERE] = MemoryBroker({"orders": 2}), MemoryBroker({"orders": 3}, broker_id=7)
    for index in (0, 1):
        store(memory[HERE], index, *(Message(b"%d-%d" % (index, number), "hot") for number in range(10)))
    return memory[HERE], memory[THERE]


def store(broker: MemoryBroker, index: int, *messages: Message) -> None:
    frames = b"".join(encode_frame(1, *encode_body(message)) for message in messages)
    broker.partition("orders", index).append(frames)


def consumed(command: Run, cluster: str, form: str = r"%p %a %v\n", topic: str = "orders") -> list[str]:
    return command("-c", cluster, "consume", topic, "--format", form)[1].splitlines()


def test_metaq_to_metaq_keeps_partitions_order_and_attributes(
    two: tuple[MemoryBroker, MemoryBroker], command: Run, tmp_path: Path
) -> None:
    mirror = ("mirror", str(HERE), str(THERE), "orders", "--checkpoint", str(tmp_path / "m.json"))
    status, out, err = command(*mirror)
    assert (status, err) == (0, "20 messages copied\n")
    assert [row.split()[:4] for row in out.splitlines()[1:]] == [
        ["orders", "0-0", "7-0", "10"],
        ["orders", "0-1", "7-1", "10"],
    ]
    assert consumed(command, str(THERE)) == [
        f"7-{index} hot {index}-{number}" for index in (0, 1) for number in range(10)
    ]
    assert command(*mirror)[2] == "0 messages copied\n"
    store(two[0], 1, Message(b"new", ""), Message(b"none"))
    row = json.loads(command(*mirror, "--json")[1])
    assert (row["messages"], row["position"]) == (2, two[0].partition("orders", 1).end)
    assert consumed(command, str(THERE))[-2:] == ["7-1  new", "7-1  none"]


def test_metaq_to_rocketmq_and_back(
    two: tuple[MemoryBroker, MemoryBroker], cluster: ScriptedCluster, rocketmq: str, command: Run, tmp_path: Path
) -> None:
    assert command("mirror", str(HERE), rocketmq, "orders", "--checkpoint", str(tmp_path / "a"))[0] == 0
    there = consumed(command, rocketmq)
    assert there == [f"broker-a:{index} hot {index}-{number}" for index in (0, 1) for number in range(10)]
    assert command("mirror", rocketmq, str(THERE), "orders", "--checkpoint", str(tmp_path / "b"))[0] == 0
    assert consumed(command, str(THERE), r"%a %v\n") == [line.split(" ", 1)[1] for line in there]


def test_rocketmq_to_rocketmq_keeps_keys_and_properties(
    cluster: ScriptedCluster, rocketmq: str, command: Run, tmp_path: Path
) -> None:
    properties = {"KEYS": "a b", "color": "red", "DELAY": "3", "MIN_OFFSET": "0", "UNIQ_KEY": "mine"}
    cluster.append("orders", A1, [b"x", b"y"], tag="hot", properties=properties)
    cluster.create_topic("copy-orders", queues=2)
    mirror = ("mirror", rocketmq, rocketmq, "orders", "--checkpoint", str(tmp_path / "m"))
    assert "--prefix: needed where source and target share a server" in command(*mirror)[2]
    assert command(*mirror, "copy-orders", "--prefix", "copy-")[2] == (
        "metaq: topic 'copy-orders' is the copy of 'orders'; leave it out\n"
    )
    assert command(*mirror, "--prefix", "copy-")[:2][0] == 0
    rows = [json.loads(line) for line in command("-c", rocketmq, "consume", "copy-orders", "--json")[1].splitlines()]
    assert [(row["partition"], row["value"], row["attribute"]) for row in rows] == [
        ("broker-a:1", "x", "hot"),
        ("broker-a:1", "y", "hot"),
    ]
    assert {name: rows[0]["properties"].get(name) for name in properties} == {
        "KEYS": "a b", "color": "red", "DELAY": None, "MIN_OFFSET": None, "UNIQ_KEY": rows[0]["message_id"],
    }  # fmt: skip
    assert rows[0]["message_id"] != "mine"


def test_what_was_not_acknowledged_is_copied_again(
    two: tuple[MemoryBroker, MemoryBroker], command: Run, tmp_path: Path
) -> None:
    mirror = ("mirror", str(HERE), str(THERE), "orders", "--checkpoint", str(tmp_path / "m"))
    two[1].before_command = lambda asked: two[1].kill() if is_put(asked, 1) else None
    status, out, err = command(*mirror)
    assert (status, out.splitlines()[1].split()[1:4]) == (1, ["0-0", "7-0", "10"])
    assert "metaq: topic 'orders': 0 of 10 messages were acknowledged" in err
    two[1].before_command = lambda asked: None
    two[1].start()
    assert command(*mirror)[0] == 0
    counts = [line.split()[0] for line in consumed(command, str(THERE))]
    assert (counts.count("7-0"), counts.count("7-1")) == (10, 20), "an answer was lost: stored, and stored again"


def saved(path: Path) -> dict[str, int]:
    """The positions in the file of a mirror of "orders"."""
    if not path.exists():
        return {}
    return {name: row["next"] for name, row in json.loads(path.read_text())["topics"]["orders"].items()}


def is_put(asked: Command, partition: int) -> bool:
    return isinstance(asked, Put | PutBatch) and asked.partition == partition


def test_a_new_mirror_may_begin_at_the_end(
    two: tuple[MemoryBroker, MemoryBroker], command: Run, tmp_path: Path
) -> None:
    mirror = ("mirror", str(HERE), str(THERE), "orders", "--checkpoint", str(tmp_path / "m"), "--start", "latest")
    assert command(*mirror)[2] == "0 messages copied\n"
    store(two[0], 0, Message(b"new"))
    assert command(*mirror)[2] == "1 message copied\n"


@pytest.mark.process
def test_following_goes_on_until_ctrl_c(cluster: ScriptedCluster, rocketmq: str, tmp_path: Path) -> None:
    cluster.create_topic("copy-orders", queues=2)
    cluster.append("orders", A0, [b"1", b"2"])
    program = [sys.executable, "-m", "metaq.cli.main", "mirror", rocketmq, rocketmq, "orders", "--follow"]
    path = tmp_path / "m"
    program += ["--prefix", "copy-", "--checkpoint", str(path), "--json"]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        wait_until(lambda: saved(path) == {"broker-a:0": 2, "broker-a:1": 0}, "two are copied")
        cluster.append("orders", A1, [b"3"])
        wait_until(lambda: saved(path) == {"broker-a:0": 2, "broker-a:1": 1}, "one more is copied")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "3 messages copied\n")
    assert [json.loads(line)["messages"] for line in out.splitlines()] == [2, 1]


def test_partitions_that_do_not_fit(
    two: tuple[MemoryBroker, MemoryBroker], cluster: ScriptedCluster, rocketmq: str, command: Run, tmp_path: Path
) -> None:
    cluster.create_topic("orders", queues=1)
    mirror = ("mirror", str(HERE), rocketmq, "orders", "--checkpoint", str(tmp_path / "m"))
    status, _, err = command(*mirror)
    assert (status, "2 partitions at the source, only 1 at the target" in err, "--fold" in err) == (2, True, True)
    assert cluster.broker().store.queue("orders", 0).end == 0
    assert command(*mirror, "--fold")[0] == 0
    values = consumed(command, rocketmq, r"%v\n")
    for index in "01":
        assert [value for value in values if value[0] == index] == [f"{index}-{number}" for number in range(10)]


def test_what_is_wrong_is_said(
    two: tuple[MemoryBroker, MemoryBroker], cluster: ScriptedCluster, rocketmq: str, command: Run, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    to_metaq = ("mirror", str(HERE), str(THERE), "orders", "--checkpoint", str(path))
    assert command("mirror", str(HERE), str(THERE), "none", "--checkpoint", str(path))[0] == 1
    path.unlink(missing_ok=True)
    assert command(*to_metaq)[0] == 0
    for arguments, status, says in [
        (["mirror", str(HERE), rocketmq, "orders", "--checkpoint", str(path)], 1, "it belongs to a mirror with target"),
        ([*to_metaq, "--prefix", "x"], 1, "it belongs to a mirror with prefix '', not 'x'"),
        (["mirror", "staging", str(THERE), "orders", "--checkpoint", str(path)], 2, "profile 'staging'"),
    ]:
        found = command(*arguments)
        assert (found[0], says in found[2]) == (status, True), found
    for text in ("{", '{"v": 2, "source": "", "target": "", "prefix": "", "topics": {}}'):
        path.write_text(text)
        status, _, err = command(*to_metaq)
        assert (status, f"checkpoint {path} cannot be used" in err) == (1, True)
    cluster.create_topic("orders", queues=8)
    store(two[0], 0, Message(b"x", "a|b"))
    offset = two[0].partition("orders", 0).end - len(encode_frame(1, *encode_body(Message(b"x", "a|b"))))
    status, _, err = command("mirror", str(HERE), rocketmq, "orders", "--checkpoint", str(tmp_path / "n"))
    assert (status, f"orders/0-0, offset {offset}: the message cannot be copied: tag 'a|b'" in err) == (2, True)
    cluster.broker().refuse(SEND_BATCH_MESSAGE, ResponseCode.NO_PERMISSION, "is forbidden", times=99)
    assert command("mirror", str(HERE), rocketmq, "orders", "--checkpoint", str(tmp_path / "o"))[0] in (1, 2)
