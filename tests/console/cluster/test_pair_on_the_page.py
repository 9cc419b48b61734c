"""The replication screen with a real pair: both members, before and after a switch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_broker import StartBroker, wait_until
from fix_zookeeper import ZooKeeperRoot
from pair_processes import PairProcess, PairProcesses

if TYPE_CHECKING:
    from fix_console import StartConsole
    from starlette.testclient import TestClient

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    made = PairProcesses(tmp_path, zookeeper, start_broker)
    made.start()
    return made


def members(console: TestClient) -> dict[str, dict[str, Any]]:
    """What the server says of each member, by its address; empty while no master is known."""
    answer = console.get("/v1/replication")
    return {one["broker"]: one for one in answer.json()} if answer.status_code == 200 else {}


def role(console: TestClient, member: PairProcess) -> str:
    return str(members(console).get(str(member.address), {}).get("role"))


def test_both_members_are_shown_before_and_after_a_switch(
    pair: PairProcesses, zookeeper: ZooKeeperRoot, start_console: StartConsole
) -> None:
    console = start_console(f"zk://{zookeeper.option}")
    first = pair.master
    second = pair.other(first)
    assert (role(console, first), role(console, second)) == ("master", "in_sync_slave")
    epoch = int(members(console)[str(first.address)]["epoch"])
    page = console.get("/replication").text
    assert all(str(each.address) in page for each in pair.members)
    assert page.count('<span class="pill good">in sync</span>') == 2
    assert pair.wait_in_sync() is first
    first.kill()
    pair.wait_master(second)
    wait_until(lambda: role(console, second) == "master", "the page has the new master")
    wait_until(lambda: "trouble" in members(console).get(str(first.address), {}), "the page says who is away")
    assert '<span class="pill bad">trouble</span>' in console.get("/replication").text
    first.start()
    assert pair.wait_in_sync() is second
    wait_until(lambda: role(console, first) == "in_sync_slave", "the page has both again")
    assert int(members(console)[str(second.address)]["epoch"]) > epoch
    assert console.get("/replication").text.count('<span class="pill good">in sync</span>') == 2
