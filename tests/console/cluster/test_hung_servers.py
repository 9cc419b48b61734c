"""A server that hangs: pages show what the others have, and say which one does not answer; the API has no half answer.

The deadline of a question is a minute here: a page that waited for a hung server would take that long, and fail.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fix_broker import StartBroker, wait_until, write_ini
from fix_zookeeper import ZooKeeperRoot

from metaq import MetaQ
from metaq.model import Address, Partition
from metaq.testing.memory import MemoryBroker
from metaq.testing.memory_server import MemoryServer
from metaq.testing.rocketmq_server import ScriptedCluster

if TYPE_CHECKING:
    from fix_console import StartConsole
    from starlette.testclient import TestClient

QUESTION_S = 60.0
SCREENS = ("/", "/topics", "/topic?topic=here", "/topic/messages?topic=here", "/groups", "/transactions", "/clients")
LINE = re.compile(r"<span>(\S+) has not answered since <time [^>]*>[^<]*</time>: ([^<]*)")
MISSING = "What it has is missing here."


@dataclass
class Hanging:
    """A cluster of a server that hangs when it is told so, and one that answers."""

    cluster: str
    hung: Address
    hang: Callable[[], object]
    go_on: Callable[[], object]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def silent(stack: ExitStack) -> Address:
    """A port that takes connections and never answers."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return Address("127.0.0.1", listener.getsockname()[1])


def in_memory(stack: ExitStack) -> Hanging:
    good = stack.enter_context(MemoryServer(broker=MemoryBroker({"here": 1}, broker_id=1)))
    bad = stack.enter_context(MemoryServer(broker=MemoryBroker({"there": 1}, broker_id=2)))
    good.client().producer().send("here", b"one tea")
    bad.client().producer().send("there", b"two scones")
    gate = threading.Event()
    stack.callback(gate.set)

    def wait(command: object) -> None:
        gate.wait()

    def hang() -> None:
        bad.broker.before_command = wait

    return Hanging(f"{good.cluster},{bad.cluster}", bad.address, hang, gate.set)


def scripted(stack: ExitStack) -> Hanging:
    cluster = stack.enter_context(ScriptedCluster(("broker-a", "broker-b")))
    for topic, broker in (("here", "broker-a"), ("there", "broker-b")):
        cluster.create_topic(topic, broker=broker)
        cluster.append(topic, Partition(broker, 0), [b"one tea"])
    bad = cluster.broker("broker-b")

    def hang() -> None:
        bad.latency_s = lambda command: 3600.0

    def go_on() -> None:
        bad.latency_s = None

    return Hanging(f"rocketmq://{cluster.name_servers[0]}", bad.address(), hang, go_on)


KINDS = {"metaq": in_memory, "rocketmq": scripted}


@pytest.fixture(params=KINDS)
def hanging(request: pytest.FixtureRequest, stack: ExitStack, metaq_state: Path) -> Hanging:
    return KINDS[request.param](stack)


def page(console: TestClient, path: str) -> str:
    answer = console.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


def names_only(text: str, hung: Address) -> bool:
    """Whether the page names this server as silent, once, and no other."""
    return [name for name, _ in LINE.findall(text)] == [str(hung)]


def test_pages_show_what_the_others_have(hanging: Hanging, start_console: StartConsole) -> None:
    console = start_console(hanging.cluster, question_s=QUESTION_S)
    assert all(name in page(console, "/topics") for name in ("here", "there"))
    hanging.hang()
    wait_until(lambda: names_only(page(console, "/topics"), hanging.hung), "answers that serve for seconds are old")
    assert MISSING in page(console, "/topics")
    for path in SCREENS[:4]:
        text = page(console, path)
        assert names_only(text, hanging.hung), path
        assert "here" in text
    hanging.go_on()
    wait_until(lambda: not LINE.search(page(console, "/topics")), "the server answers again")
    assert all(name in page(console, "/topics") for name in ("here", "there"))
    assert "notice bad" not in page(console, "/topic?topic=there").replace('notice bad" role="alert" hidden', "")


def test_a_dashboard_starts_beside_a_hung_server(hanging: Hanging, start_console: StartConsole) -> None:
    hanging.hang()
    console = start_console(hanging.cluster, question_s=QUESTION_S)
    for path in SCREENS:
        text = page(console, path)
        assert names_only(text, hanging.hung), path
    assert ">here<" in page(console, "/topics")
    assert "one tea" in page(console, "/topic/messages?topic=here")


def test_what_only_a_hung_server_has_is_not_gone(hanging: Hanging, start_console: StartConsole) -> None:
    hanging.hang()
    console = start_console(hanging.cluster, question_s=QUESTION_S)
    answer = console.get("/topic?topic=there", headers={"Accept": "text/html"})
    assert answer.status_code == 502
    assert names_only(answer.text, hanging.hung)


def test_the_api_has_no_half_answer(hanging: Hanging, start_console: StartConsole) -> None:
    console = start_console(hanging.cluster, question_s=QUESTION_S)
    hanging.hang()
    wait_until(lambda: console.get("/v1/topics").status_code != 200, "answers that serve for seconds are old")
    of_here = ("topics/here", "topics/here/partitions", "topics/here/messages")
    for path in ("topics", "stats", "groups", "replication", "groups/billing/lag", *of_here):
        answer = console.get(f"/v1/{path}")
        assert answer.status_code in (502, 504), path
        assert str(hanging.hung) in answer.json()["error"]["message"], path
    partition = "1-0" if hanging.cluster.startswith("127") else "broker-a:0"
    for path in ("server", "health", f"topics/here/messages?partition={partition}"):
        assert console.get(f"/v1/{path}").status_code == 200, path


def test_no_offset_is_reset_while_a_server_hangs(hanging: Hanging, start_console: StartConsole) -> None:
    hanging.hang()
    console = start_console(hanging.cluster, question_s=QUESTION_S, write=True)
    for dry_run in (True, False):
        body = {"topic": "here", "to": "earliest", "dry_run": dry_run}
        answer = console.post("/v1/groups/billing/reset", json=body)
        assert answer.status_code in (502, 504)
        assert str(hanging.hung) in answer.json()["error"]["message"]


def test_a_cluster_that_hangs_as_a_whole_is_not_empty(silent: Address, start_console: StartConsole) -> None:
    console = start_console(str(silent), question_s=QUESTION_S)
    text = page(console, "/topics")
    assert names_only(text, silent)
    assert console.get("/v1/topics").status_code in (502, 504)


def test_one_of_two_name_servers_hangs(
    silent: Address, rocketmq_memory: ScriptedCluster, start_console: StartConsole
) -> None:
    rocketmq_memory.create_topic("here")
    cluster = f"rocketmq://{silent};{rocketmq_memory.name_servers[0]}"
    console = start_console(cluster, question_s=QUESTION_S)
    text = page(console, "/topics")
    assert names_only(text, silent)
    assert ">here<" in text
    assert MISSING not in text
    assert [row["topic"] for row in console.get("/v1/topics").json()["rows"]] == ["here"]


def test_a_server_that_is_away_is_left_out_too(start_console: StartConsole, stack: ExitStack) -> None:
    good = stack.enter_context(MemoryServer(broker=MemoryBroker({"*": 1}, broker_id=1)))
    bad = stack.enter_context(MemoryServer(broker=MemoryBroker({"*": 1}, broker_id=2)))
    good.client().producer().send("here", b"one tea")
    bad.client().producer().send("there", b"two scones")
    console = start_console(f"{good.cluster},{bad.cluster}", question_s=QUESTION_S)
    bad.kill()
    wait_until(lambda: names_only(page(console, "/topic?topic=here"), bad.address), "the page names it")
    assert "Connection refused" in page(console, "/topics")
    bad.start()
    wait_until(lambda: not LINE.search(page(console, "/topics")), "the server is back")
    assert ">there<" in page(console, "/topics")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "zookeeper"])
def test_frozen_processes(
    kind: str, tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker, start_console: StartConsole
) -> None:
    brokers = []
    for number in (1, 2):
        registry = zookeeper.ini() if kind == "zookeeper" else "[zookeeper]\nzk.zkEnable=false\n"
        ini = write_ini(tmp_path / str(number), f"[topic=*]\n{registry}", brokerId=number)
        brokers.append(start_broker("start", "-f", ini, "--port", "0"))
    good, bad = brokers
    for broker, topic in ((good, "here"), (bad, "there")):
        with MetaQ(str(broker.address)) as mq:
            mq.producer().send(topic, b"one tea")
    cluster = f"zk://{zookeeper.option}" if kind == "zookeeper" else f"{good.address},{bad.address}"
    console = start_console(cluster, question_s=QUESTION_S)
    wait_until(lambda: ">there<" in page(console, "/topics"), "both are there")
    bad.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: names_only(page(console, "/topics"), bad.address), "the page names it")
        for path in SCREENS:
            assert names_only(page(console, path), bad.address), path
        assert ">here<" in page(console, "/topics")
    finally:
        bad.process.send_signal(signal.SIGCONT)
    wait_until(lambda: ">there<" in page(console, "/topics"), "the frozen one is back")
