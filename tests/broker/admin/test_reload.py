"""Reload in one process: what a changed file changes, what waits for a restart, what is refused and changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.admin.reload import Reloader, ReloadRefused, ReloadReport
from metaq_broker.clock import ManualClock
from metaq_broker.config.configuration import BrokerConfig, parse
from metaq_broker.engine.stores import TopicStores
from metaq_broker.storage.files import Files
from operated import SYSTEM

TOPICS = "[topic=orders]\n[topic=logs-*]\nstat=true\n"


class World:
    """A data folder, a configuration file, and whatever the reloader was told to apply."""

    def __init__(self, root: Path, topics: str = TOPICS) -> None:
        self.root = root
        self.file = root / "server.ini"
        self.system = f"{SYSTEM}dataPath={root / 'data'}\n"
        self.write(topics)
        self.config = parse(self.file.read_bytes(), str(self.file))
        self.applied: list[BrokerConfig] = []
        self.clock = ManualClock()
        self.stores = TopicStores.open(Files(), self.clock, self.config)
        self.reloader = Reloader(self.file, lambda: self.config, self.stores, self._apply, self.clock)

    def write(self, topics: str, system: Callable[[str], str] = lambda text: text) -> None:
        self.file.write_text(system(self.system) + topics)

    def _apply(self, config: BrokerConfig) -> None:
        self.config = config
        self.applied.append(config)

    def reload(self) -> ReloadReport:
        return asyncio.run(self.reloader.reload())


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.stores.close(clean=True)


def told(report: ReloadReport) -> dict[str, Any]:
    """The parts of a report that say something, without the file."""
    fields = dataclasses.asdict(report)
    return {name: value for name, value in fields.items() if value and name not in ("file", "checksum")}


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (TOPICS, {}),
        (TOPICS + "; a comment\n", {}),
        (TOPICS + "[topic=new]\n", {"added": ["new"]}),
        (TOPICS + "stat=false\nnumPartitions=2*4\n", {"changed": {"logs-*": ["numPartitions", "stat"]}}),
        (
            "[topic=orders]\nunflushThreshold=5\nunflushInterval=20\ndeletePolicy=delete,1\ndeleteWhen=0 0 7 * * ?\n",
            {
                "removed": ["logs-*"],
                "changed": {"orders": ["deletePolicy", "deleteWhen", "unflushInterval", "unflushThreshold"]},
            },
        ),
        (TOPICS + "[mystery]\nx=1\n", {"notes": ["{file} [mystery]: unknown section, ignored"]}),
    ],
)
def test_topics_take_effect(topics: str, expected: dict[str, Any], world: World) -> None:
    world.write(topics.replace("stat=true\nstat", "stat") if "stat=false" in topics else topics)
    report = world.reload()
    found = told(report)
    if "changed" in found:
        found["changed"] = {name: sorted(keys) for name, keys in found["changed"].items()}
    if "notes" in expected:
        expected = {"notes": [note.format(file=world.file) for note in expected["notes"]]}
    assert found == expected
    assert (report.file, report.checksum) == (str(world.file), world.config.checksum)
    assert world.config.text == world.file.read_bytes()
    assert world.applied == [world.config]
    assert world.config.accepts("orders")
    assert world.config.accepts("logs-a")
    assert world.config.accepts("new") == ("new" in topics)


def test_a_removed_topic_is_accepted_until_the_restart_and_can_come_back(world: World) -> None:
    world.write("[topic=other]\n")
    for _ in range(2):
        assert world.reload().removed == ["orders", "logs-*"]
        assert world.config.accepts("orders")
    world.write(TOPICS)
    assert told(world.reload()) == {"removed": ["other"]}


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("brokerId=1", "brokerId=2", "[system] brokerId"),
        ("serverPort=0", "serverPort=9", "[system] serverPort"),
        ("numPartitions=4", "numPartitions=9", "[system] numPartitions"),
        ("serverPort=0", "serverPort=0\nmaxConnections=5", "[system] maxConnections"),
        ("[system]", "[zookeeper]\nzk.zkEnable=false\n[system]", "[zookeeper] zk.zkEnable"),
    ],
)
def test_the_rest_waits_for_a_restart_and_topics_do_not_inherit_it(old: str, new: str, key: str, world: World) -> None:
    before = world.config
    world.write(TOPICS + "[topic=new]\n", lambda text: text.replace(old, new))
    assert told(world.reload()) == {"added": ["new"], "restart_needed": [key]}
    assert world.reloader.restart_needed == [key]
    assert (world.config.system, world.config.zookeeper) == (before.system, before.zookeeper)
    assert world.config.topics["new"] == before.topics["orders"]
    assert told(world.reload()) == {"restart_needed": [key]}
    world.write(TOPICS)
    assert told(world.reload()) == {"removed": ["new"]}
    assert world.reloader.restart_needed == []


def test_what_the_command_line_changed_is_no_difference(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.config = dataclasses.replace(world.config, system=dataclasses.replace(world.config.system, server_port=77))
    world.reloader = Reloader(world.file, lambda: world.config, world.stores, world._apply, world.clock)
    assert told(world.reload()) == {}
    assert world.config.system.server_port == 77
    world.stores.close(clean=True)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ("[topic=orders]\nstat=maybe\n", "server.ini [topic=orders] stat: value 'maybe'; allowed is true or false"),
        ("[topic=orders]\nstats=true\n", "unknown key; the nearest valid key is stat"),
        ("", "no topic is configured"),
        ("[topic=orders\n", "is no section"),
        ("[topic=a]\n[topic=a]\n", "is given twice"),
        ("[topic=orders]\ndeleteWhen=never\n", "a Quartz schedule"),
        ("[topic=new]\ndataPath={file}/no\n", "cannot be used: File exists"),
    ],
)
def test_a_wrong_file_changes_nothing(topics: str, message: str, world: World) -> None:
    before, paths = world.config, world.stores.data_paths
    world.write(topics.format(file=world.file))
    with pytest.raises(ReloadRefused, match=re.escape(message)):
        world.reload()
    assert (world.config, world.applied, world.stores.data_paths) == (before, [], paths)
    world.file.unlink()
    with pytest.raises(ReloadRefused, match="cannot be read: No such file or directory"):
        world.reload()
    world.write(TOPICS + "[topic=new]\n")
    assert told(world.reload()) == {"added": ["new"]}


def test_without_a_file_there_is_nothing_to_reload(world: World) -> None:
    reloader = Reloader(None, lambda: world.config, world.stores, world._apply, world.clock)
    with pytest.raises(ReloadRefused, match="started without a configuration file"):
        asyncio.run(reloader.reload())


# ---- data folders


def test_a_new_topic_may_have_a_folder_of_its_own(world: World) -> None:
    world.write(TOPICS + f"[topic=new]\ndataPath={world.root / 'other'}\n")
    assert told(world.reload()) == {"added": ["new"]}
    world.stores.get_or_create("new", 0).append([b"\0" * 20])
    world.stores.get_or_create("orders", 0)
    assert sorted(path.name for path in (world.root / "other").glob("*-[0-9]")) == ["new-0"]
    assert [log.topic for log in world.stores.logs()] == ["new", "orders"]
    second = TopicStores(Files(), world.clock, world.config)
    with pytest.raises(Exception, match="is in use by another broker"):
        second.open_store(str(world.root / "other"))


def test_folders_are_opened_all_or_none(world: World) -> None:
    paths = "".join(f"[topic={name}]\ndataPath={world.root / name}\n" for name in ("one", "two"))
    (world.root / "two").write_text("a file")
    world.write(TOPICS + paths)
    with pytest.raises(ReloadRefused, match="two cannot be used"):
        world.reload()
    (world.root / "two").unlink()
    assert told(world.reload()) == {"added": ["one", "two"]}  # the lock of `one` was given back


@pytest.mark.parametrize("topic", ["orders", "logs-a"])
def test_the_folder_of_a_topic_that_is_there_stays_until_a_restart(topic: str, world: World) -> None:
    world.stores.get_or_create(topic, 0)
    others = TOPICS.replace(f"[topic={topic}]\n", "")
    world.write(f"{others}[topic={topic}]\ndataPath={world.root / 'other'}\n")
    assert world.reload().restart_needed == [f"[topic={topic}] dataPath"]
    assert world.config.topic_settings(topic).data_path == str(world.root / "data")
    assert world.stores.get(topic, 0) is not None
    assert not (world.root / "other").exists()


def test_partitions_behind_a_smaller_number_are_told(world: World) -> None:
    for index in range(4):
        world.stores.get_or_create("orders", index)
    world.write(TOPICS.replace("[topic=orders]", "[topic=orders]\nnumPartitions=2"))
    report = world.reload()
    rest = "still there to be read, but behind numPartitions=2: no more puts"
    assert report.notes == [f"orders-2 to orders-3: {rest}"]
    world.write(TOPICS.replace("[topic=orders]", "[topic=orders]\nnumPartitions=3"))
    assert world.reload().notes == []


def test_reloads_take_turns(world: World) -> None:
    async def many() -> list[ReloadReport]:
        return await asyncio.gather(*(world.reloader.reload() for _ in range(5)))

    world.write(TOPICS + "[topic=new]\n")
    reports = asyncio.run(many())
    assert [report.added for report in reports] == [["new"], [], [], [], []]


def test_a_stop_ends_reloads(world: World) -> None:
    async def story() -> None:
        await world.reloader.stop()
        world.reloader.reload_soon()
        with pytest.raises(ReloadRefused, match="the broker is stopping"):
            await world.reloader.reload()

    asyncio.run(story())
    assert world.applied == []
