"""Reload in one process: what a changed file changes, what waits for a restart, what is refused and changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.configuration import BrokerConfig, parse
from metaq_broker.operate.config.replication import GregorConfig
from metaq_broker.operate.control.reload import Reloader, ReloadRefused, ReloadReport
from operated import SYSTEM
from waiting import in_loop

TOPICS = "[topic=orders]\n[topic=logs-*]\nstat=true\n"


class Harness:
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
        self.reloader = Reloader(self.file, lambda: self.config, self.stores, self.apply, self.clock)

    def write(self, topics: str, system: Callable[[str], str] = lambda text: text) -> None:
        self.file.write_text(system(self.system) + topics)

    def apply(self, config: BrokerConfig) -> None:
        self.config = config
        self.applied.append(config)

    def reload(self) -> ReloadReport:
        return asyncio.run(self.reloader.reload())


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    made = Harness(tmp_path)
    yield made
    made.stores.close(clean=True)


def reported(report: ReloadReport) -> dict[str, Any]:
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
def test_topics_take_effect(topics: str, expected: dict[str, Any], harness: Harness) -> None:
    harness.write(topics.replace("stat=true\nstat", "stat") if "stat=false" in topics else topics)
    report = harness.reload()
    found = reported(report)
    if "changed" in found:
        found["changed"] = {name: sorted(keys) for name, keys in found["changed"].items()}
    if "notes" in expected:
        expected = {"notes": [note.format(file=harness.file) for note in expected["notes"]]}
    assert found == expected
    assert (report.file, report.checksum) == (str(harness.file), harness.config.checksum)
    assert harness.config.text == harness.file.read_bytes()
    assert harness.applied == [harness.config]
    assert harness.config.accepts("orders")
    assert harness.config.accepts("logs-a")
    assert harness.config.accepts("new") == ("new" in topics)


def test_a_removed_topic_is_accepted_until_the_restart_and_can_come_back(harness: Harness) -> None:
    harness.write("[topic=other]\n")
    for _ in range(2):
        assert harness.reload().removed == ["orders", "logs-*"]
        assert harness.config.accepts("orders")
    harness.write(TOPICS)
    assert reported(harness.reload()) == {"removed": ["other"]}


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
def test_the_rest_waits_for_a_restart_and_topics_do_not_inherit_it(
    old: str, new: str, key: str, harness: Harness
) -> None:
    before = harness.config
    harness.write(TOPICS + "[topic=new]\n", lambda text: text.replace(old, new))
    assert reported(harness.reload()) == {"added": ["new"], "restart_needed": [key]}
    assert harness.reloader.restart_needed == [key]
    assert (harness.config.system, harness.config.zookeeper) == (before.system, before.zookeeper)
    assert harness.config.topics["new"] == before.topics["orders"]
    assert reported(harness.reload()) == {"restart_needed": [key]}
    harness.write(TOPICS)
    assert reported(harness.reload()) == {"removed": ["new"]}
    assert harness.reloader.restart_needed == []


ROCKETMQ = "[rocketmq]\nenabled=true\n"
SAMSA = "[samsa]\nslave=h:1\n"
PAIR = "[zookeeper]\nzk.zkConnect=zk:2181\n[pair]\nother=h:1\n"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ROCKETMQ, ROCKETMQ + "maxMessageSize=1024\n", ["[rocketmq] maxMessageSize"]),
        ("[http]\n", "[http]\nport=1\nwrite=true\n", ["[http] port", "[http] write"]),
        ("[slave]\nslaveId=0\nmaster=h:1\n", "[slave]\nslaveId=0\nmaster=h:2\n", ["[slave] master"]),
        (SAMSA, SAMSA + "sendToSlaveTimeoutInMills=9\n", ["[samsa] sendToSlaveTimeoutInMills"]),
        ("[gregor]\n", "[gregor]\nmaster=h:1\n", ["[gregor] master"]),
        (PAIR, PAIR + "sessionMs=900\n", ["[pair] sessionMs"]),
        ("", ROCKETMQ, ["[rocketmq]"]),
        ("[http]\n", "", ["[http]"]),
        ("[gregor]\n", SAMSA, ["[gregor]", "[samsa]"]),
    ],
)
def test_keys_of_all_sections_are_named_as_in_the_file(
    before: str, after: str, expected: list[str], tmp_path: Path
) -> None:
    harness = Harness(tmp_path, TOPICS + before)
    harness.write(TOPICS + after)
    assert reported(harness.reload()) == {"restart_needed": expected}
    harness.stores.close(clean=True)


def test_a_new_topic_that_does_not_match_itself_is_refused_at_once_and_also_when_removed(harness: Harness) -> None:
    harness.write(TOPICS + "[topic=a$]\n")
    report = harness.reload()
    assert (report.added, report.restart_needed) == (["a$"], [])
    assert harness.config.unmatched == {"a$"}
    harness.write(TOPICS)
    assert harness.reload().removed == ["a$"]
    assert harness.config.unmatched == {"a$"}
    harness.write(TOPICS + "[topic=a*]\n")
    harness.reload()
    assert harness.config.unmatched == set(), "a wildcard covers it"


def test_what_the_command_line_changed_is_no_difference(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.config = dataclasses.replace(
        harness.config, system=dataclasses.replace(harness.config.system, server_port=77)
    )
    harness.reloader = Reloader(harness.file, lambda: harness.config, harness.stores, harness.apply, harness.clock)
    assert reported(harness.reload()) == {}
    assert harness.config.system.server_port == 77
    harness.stores.close(clean=True)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ("[topic=orders]\nstat=maybe\n", "server.ini [topic=orders] stat: value 'maybe'; expected true or false"),
        ("[topic=orders]\nstats=true\n", "unknown key; the nearest valid key is stat"),
        ("", "no topic is configured"),
        ("[topic=orders\n", "is no section"),
        ("[topic=a]\n[topic=a]\n", "is given twice"),
        ("[topic=orders]\ndeleteWhen=never\n", "a Quartz schedule"),
        ("[topic=new]\ndataPath={file}/no\n", "cannot be used: File exists"),
    ],
)
def test_a_wrong_file_changes_nothing(topics: str, message: str, harness: Harness) -> None:
    before, paths = harness.config, harness.stores.data_paths
    harness.write(topics.format(file=harness.file))
    with pytest.raises(ReloadRefused, match=re.escape(message)):
        harness.reload()
    assert (harness.config, harness.applied, harness.stores.data_paths) == (before, [], paths)
    harness.file.unlink()
    with pytest.raises(ReloadRefused, match="cannot be read: No such file or directory"):
        harness.reload()
    harness.write(TOPICS + "[topic=new]\n")
    assert reported(harness.reload()) == {"added": ["new"]}


def test_without_a_file_there_is_nothing_to_reload(harness: Harness) -> None:
    reloader = Reloader(None, lambda: harness.config, harness.stores, harness.apply, harness.clock)
    with pytest.raises(ReloadRefused, match="started without a configuration file"):
        asyncio.run(reloader.reload())


# ---- data folders


def test_a_new_topic_may_have_a_folder_of_its_own(harness: Harness) -> None:
    harness.write(TOPICS + f"[topic=new]\ndataPath={harness.root / 'other'}\n")
    assert reported(harness.reload()) == {"added": ["new"]}
    harness.stores.get_or_create("new", 0).append([b"\0" * 20])
    harness.stores.get_or_create("orders", 0)
    assert sorted(path.name for path in (harness.root / "other").glob("*-[0-9]")) == ["new-0"]
    assert [log.topic for log in harness.stores.logs()] == ["new", "orders"]
    second = TopicStores(Files(), harness.clock, harness.config)
    with pytest.raises(Exception, match="is in use by another broker"):
        second.open_store(str(harness.root / "other"))


def test_folders_are_opened_all_or_none(harness: Harness) -> None:
    paths = "".join(f"[topic={name}]\ndataPath={harness.root / name}\n" for name in ("one", "two"))
    (harness.root / "two").write_text("a file")
    harness.write(TOPICS + paths)
    with pytest.raises(ReloadRefused, match="two cannot be used"):
        harness.reload()
    (harness.root / "two").unlink()
    assert reported(harness.reload()) == {"added": ["one", "two"]}  # the lock of `one` was given back


@pytest.mark.parametrize("topic", ["orders", "logs-a"])
def test_the_folder_of_a_topic_that_is_there_stays_until_a_restart(topic: str, harness: Harness) -> None:
    harness.stores.get_or_create(topic, 0)
    others = TOPICS.replace(f"[topic={topic}]\n", "")
    harness.write(f"{others}[topic={topic}]\ndataPath={harness.root / 'other'}\n")
    assert harness.reload().restart_needed == [f"[topic={topic}] dataPath"]
    assert harness.config.topic_settings(topic).data_path == str(harness.root / "data")
    assert harness.stores.get(topic, 0) is not None
    assert not (harness.root / "other").exists()


def test_partitions_behind_a_smaller_number_are_reported(harness: Harness) -> None:
    for index in range(4):
        harness.stores.get_or_create("orders", index)
    harness.write(TOPICS.replace("[topic=orders]", "[topic=orders]\nnumPartitions=2"))
    report = harness.reload()
    rest = "not below numPartitions=2: it can still be read, and accepts no puts"
    assert report.notes == [f"orders-2 to orders-3: {rest}"]
    harness.write(TOPICS.replace("[topic=orders]", "[topic=orders]\nnumPartitions=3"))
    assert harness.reload().notes == []


def test_reloads_take_turns(harness: Harness) -> None:
    async def many() -> list[ReloadReport]:
        return await asyncio.gather(*(harness.reloader.reload() for _ in range(5)))

    harness.write(TOPICS + "[topic=new]\n")
    reports = asyncio.run(many())
    assert [report.added for report in reports] == [["new"], [], [], [], []]


@in_loop
async def test_a_broker_that_is_promoted_meanwhile_stays_a_master(harness: Harness) -> None:
    harness.config = dataclasses.replace(harness.config, role=GregorConfig(master=None))

    async def announce(_config: BrokerConfig) -> None:
        harness.config = dataclasses.replace(harness.config, role=None)

    reloader = Reloader(harness.file, lambda: harness.config, harness.stores, harness.apply, harness.clock, announce)
    harness.write(TOPICS + "[topic=new]\n")
    assert (await reloader.reload()).added == ["new"]
    assert harness.config.role is None


@in_loop
async def test_a_stop_ends_reloads(harness: Harness) -> None:
    await harness.reloader.stop()
    harness.reloader.reload_soon()
    with pytest.raises(ReloadRefused, match="the broker is stopping"):
        await harness.reloader.reload()
    assert harness.applied == []
