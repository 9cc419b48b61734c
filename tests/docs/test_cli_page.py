"""The examples of docs/cli.md print what the page says, line by line, against a real broker and a real ZooKeeper."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks
from fix_broker import StartBroker, wait_until, write_ini
from fix_zookeeper import ZooKeeperRoot

from metaq.client.metaq import MetaQ
from metaq.model import Partition
from metaq.testing.rocketmq_server import ScriptedCluster

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

PAGE = "docs/cli.md"


def examples() -> list[tuple[str, str]]:
    """Each command line of the page with what it prints."""
    texts = [block.text for block in blocks("console", page=PAGE)]
    steps = [step for text in texts for step in re.split(r"^\$ ", text, flags=re.MULTILINE) if step]
    return [(step.partition("\n")[0], step.partition("\n")[2]) for step in steps]


def test_the_examples(start_broker: StartBroker, zookeeper: ZooKeeperRoot, tmp_path: Path) -> None:
    ini = write_ini(tmp_path, f"{zookeeper.ini()}[topic=orders]\n", hostName="127.0.0.1")
    broker = start_broker("start", "-f", ini)
    registered = f"zk://{zookeeper.option}"
    with MetaQ(registered) as mq:
        wait_until(lambda: list(mq.cluster.brokers()) == [0], "the broker is registered")
    zookeeper.put("/consumers/billing/offsets/orders/0-0", "-1-27")
    environment = {**os.environ, "METAQ_CLUSTER": str(broker.address), "PATH": _with_command(tmp_path)}
    found = examples()
    assert len(found) == 33
    _write_checkpoint(tmp_path / "progress" / "query")
    with ScriptedCluster() as rocketmq:
        _fill(rocketmq)
        name_server = str(rocketmq.name_servers[0])
        for line, says in found:
            shell = line.replace("zk://127.0.0.1:2181/meta", registered).replace("127.0.0.1:9876", name_server)
            shell = shell.replace("127.0.0.1:8123", str(broker.address))
            _compare(shell, says, environment, str(broker.address), tmp_path)


def _fill(rocketmq: ScriptedCluster) -> None:
    """The topics of the page, and a message that a group gave up."""
    for topic in ("orders", "orders-copy", "east-orders", "%DLQ%billing"):
        rocketmq.create_topic(topic)
    properties = {"RETRY_TOPIC": "orders", "UNIQ_KEY": "7F00000100002A9F0000000000000007"}
    queue = Partition("broker-a", 0)
    rocketmq.append("%DLQ%billing", queue, [b"two scones"], properties=properties, reconsume_times=16)


def _write_checkpoint(folder: Path) -> None:
    """A query that has read the first message."""
    for name, lines in (
        ("offsets", ['{"v": 2, "topics": {"orders": {"0-0": 27}}, "incarnations": {}}']),
        ("commits", []),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_text("\n".join(["v1", "{}", *lines]))


def _compare(shell: str, says: str, environment: dict[str, str], address: str, folder: Path) -> None:
    """Run a line, and compare what it prints with what the page says."""
    ran = subprocess.run(
        ["sh", "-c", shell],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, f"{shell}: {ran.stdout}"
    assert _masked(ran.stdout, address) == _masked(says, "127.0.0.1:8123"), shell


def _with_command(folder: Path) -> str:
    """A PATH on which ``metaq`` is the command of this tree."""
    program = folder / "bin" / "metaq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m metaq.cli.main "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def _masked(text: str, address: str) -> str:
    """Without what differs from run to run; columns are compared by their words."""
    text = re.sub(r"\d{19}", "ID", text.replace(address, "ADDRESS"))
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"[+-]?\d+(\.\d+)? (ms|s|GiB)\b", r"N \2", text)
    text = re.sub(r"\S+/data: ", "FOLDER: ", text)
    text = re.sub(r"\b\d+\.\d\d\b", "RATE", text)
    return "\n".join(sorted(re.sub(r"  +", "  ", line).strip() for line in text.splitlines()))
