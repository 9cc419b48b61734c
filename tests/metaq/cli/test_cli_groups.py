"""The command's groups: ``consume --group``, ``reset``, ``dlq``, on a real broker and a real ZooKeeper."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import CapturedCommand
from fix_broker import wait_until
from fix_zookeeper import SESSION_S, Brokers, ZooKeeperRoot

from metaq import MetaQ
from metaq.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from metaq.client.groups.deliveries import Delivery
from metaq.errors import PartitionLost
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Partition
from metaq.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.process

SIZE = HEADER_BYTES + 1


class Command:
    """Runs ``metaq`` on the cluster of a test: in a process of its own, or with ``run`` in this one."""

    def __init__(self, cluster: str, run: CapturedCommand) -> None:
        self.cluster, self._run = cluster, run

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "metaq.cli.main", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *arguments: str) -> tuple[int, list[str], str]:
        status, out, error = self._run(*arguments)
        return status, out.splitlines(), error


@pytest.fixture
def metaq(
    brokers: Brokers,
    zookeeper: ZooKeeperRoot,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: CapturedCommand,
) -> Command:
    """A topic "orders" with the messages a to f in one partition."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    brokers.start("one", "[topic=orders]\nnumPartitions=1\n")
    cluster = f"zk://{zookeeper.option}"
    with MetaQ(cluster) as mq:
        mq.producer().send_many("orders", list("abcdef"))
    monkeypatch.setenv("METAQ_CLUSTER", cluster)
    return Command(cluster, command)


def test_a_group_is_read_on_from_run_to_run(metaq: Command, zookeeper: ZooKeeperRoot) -> None:
    assert metaq("consume", "orders", "--group", "g", "-n", "2")[:2] == (EXIT_OK, ["a", "b"])
    assert (zookeeper.text("/consumers/g/offsets/orders/3-0") or "").endswith(f"-{2 * SIZE}")
    assert metaq("consume", "orders", "--group", "g", "--format", "%o %v\\n")[1][0] == f"{2 * SIZE} c"
    assert metaq("consume", "orders", "--group", "g")[:2] == (EXIT_OK, [])
    assert metaq("consume", "orders", "--group", "h", "--from", "latest")[:2] == (EXIT_OK, [])


def test_ctrl_c_keeps_the_position_and_ends_at_once(metaq: Command) -> None:
    process = metaq.start("consume", "orders", "--group", "g", "--follow")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(6)] == [f"{letter}\n" for letter in "abcdef"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    assert metaq("consume", "orders", "--group", "g")[:2] == (EXIT_OK, [])


def test_partitions_that_are_lost_while_the_output_waits(metaq: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge, lost = Delivery.ack, ["a", "b"]

    def ack(message: Delivery) -> None:
        if (text := message.data.decode()) in lost:
            lost.remove(text)
            raise PartitionLost(str(message.where), message.offset, message.generation)
        acknowledge(message)

    monkeypatch.setattr(Delivery, "ack", ack)
    assert metaq("consume", "orders", "--group", "g", "-n", "6") == (EXIT_OK, list("abcdef"), "")
    assert metaq("consume", "orders", "--group", "g", "-n", "6")[:2] == (EXIT_OK, list("abcdef"))


def test_what_a_group_cannot_do(metaq: Command) -> None:
    assert "--partition: with --group" in metaq("consume", "orders", "--group", "g", "-p", "3-0")[2]
    status, _, error = metaq("consume", "nothing", "--group", "g")
    assert (status, "topic 'nothing' does not exist" in error) == (EXIT_FAILED, True)


def test_a_reset_is_shown_first_and_refused_while_the_group_runs(metaq: Command, zookeeper: ZooKeeperRoot) -> None:
    metaq("consume", "orders", "--group", "g")
    status, lines, error = metaq("reset", "g", "orders", "--to", str(2 * SIZE), "-p", "3-0")
    assert (status, lines[1].split()) == (EXIT_OK, ["3-0", str(6 * SIZE), str(2 * SIZE)])
    assert "nothing is changed; --execute does it" in error
    assert metaq("consume", "orders", "--group", "g")[1] == []
    status, lines, error = metaq("reset", "g", "orders", "--to", str(2 * SIZE), "-p", "3-0", "--execute", "--json")
    assert json.loads(lines[0]) == {"partition": "3-0", "position": 6 * SIZE, "to": 2 * SIZE}
    assert metaq("consume", "orders", "--group", "g")[1] == ["c", "d", "e", "f"]
    with MetaQ(metaq.cluster) as mq, mq.consumer("g", ["orders"], session_s=SESSION_S) as consumer:
        wait_until(lambda: len(consumer.assignment) == 1, "it is a member")
        status, _, error = metaq("reset", "g", "orders", "--to", "earliest", "--execute")
    assert (status, "group 'g' has running consumers" in error) == (EXIT_USAGE, True)
    assert "no message begins at offset 5" in metaq("reset", "g", "orders", "--to", "5", "-p", "3-0")[2]
    assert "has no partition 9-9; it has 3-0" in metaq("reset", "g", "orders", "--to", "latest", "-p", "9-9")[2]


def test_parked_messages_are_listed_sent_again_and_discarded(metaq: Command) -> None:
    def refuse(message: object) -> None:
        seen.append(message)
        if len(seen) == 6:
            consumer.stop()
        raise LookupError("no such customer")

    seen: list[object] = []
    with (
        MetaQ(metaq.cluster) as mq,
        mq.consumer("g", ["orders"], max_attempts=1, session_s=SESSION_S) as consumer,
    ):
        consumer.run(refuse)
    status, lines, _ = metaq("dlq", "list", "g", "--json")
    rows = [json.loads(line) for line in lines]
    assert (status, [row["value"] for row in rows]) == (EXIT_OK, list("abcdef"))
    assert {row["reason"] for row in rows} == {"LookupError: no such customer"}
    numbers = [str(row["number"]) for row in rows]
    assert "2 messages sent again" in metaq("dlq", "resend", "g", numbers[0], numbers[2])[2]
    assert metaq("consume", "orders", "--from", str(6 * SIZE), "-p", "3-0")[1] == ["a", "c"]
    assert "1 message discarded" in metaq("dlq", "discard", "g", numbers[1])[2]
    assert metaq("dlq", "discard", "g")[0] == EXIT_USAGE
    for action in ("list", "resend", "discard"):
        assert metaq("dlq", action, "g", numbers[1], numbers[3]) == (
            EXIT_USAGE,
            [],
            f"metaq: dlq: group 'g' has no parked message {numbers[1]}\n",
        )
    assert "3 messages discarded" in metaq("dlq", "discard", "g", "--all")[2]
    assert metaq("dlq", "list", "g")[1] == ["number  topic  partition  offset  parked  reason"]


def test_a_group_at_brokers_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: CapturedCommand
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker, MetaQ(broker.cluster) as mq:
        metaq = Command(broker.cluster, command)
        monkeypatch.setenv("METAQ_CLUSTER", broker.cluster)
        mq.producer().send("orders", "a", partition=Partition(0, 0))
        assert metaq("consume", "orders", "--group", "g")[:2] == (EXIT_OK, ["a"])
        status, lines, error = metaq("groups", "--forget", "g", "--json")
        assert json.loads(lines[0]) == {"topic": "orders", "partition": "0-0", "position": SIZE}
        assert (status, error) == (EXIT_OK, "nothing is forgotten; --execute does it\n")
        with mq.consumer("g", ["orders"]) as consumer:
            wait_until(lambda: len(consumer.assignment) > 0, "it is a member")
            status, _, error = metaq("groups", "--forget", "g", "--execute")
        assert (status, "group 'g' has running consumers" in error) == (EXIT_USAGE, True)
        assert metaq("groups")[1] == ["group", "g"]
        assert metaq("groups", "--forget", "g", "--execute")[2] == "the group is forgotten\n"
        assert metaq("groups")[1] == ["group"]
        for options in ((), ("--execute",)):
            unknown = metaq("groups", "--forget", "g", *options)
            assert unknown == (EXIT_USAGE, [], "metaq: no broker knows group 'g'\n")
        assert metaq("consume", "orders", "--group", "g")[1] == ["a"]


def test_other_groups_are_not_forgotten(metaq: Command) -> None:
    status, _, error = metaq("groups", "--forget", "g", "--execute")
    assert (status, error) == (
        EXIT_USAGE,
        "metaq: groups in ZooKeeper are not forgotten; only those that bundled brokers keep\n",
    )
