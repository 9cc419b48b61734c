"""A broker in a real ZooKeeper: node for node as MetaQ's, through crashes, expired sessions and a ZooKeeper away."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import RunningBroker, run_broker_command, wait_until
from fix_zookeeper import SESSION_S, Brokers, Node, meta, waits_until_stopped
from kazoo.exceptions import NotEmptyError
from metaq_broker.cli import main

from metaq.formats.checksum import crc32

pytestmark = [pytest.mark.process, pytest.mark.slow]

GOLDEN_TOPICS = """\
[topic=test]
[topic=meta-test]
numPartitions=1
[topic=slow]
numPartitions=1
[topic=wild*]
"""
"""The topics of the broker whose tree was recorded; it had two partitions for those that set nothing."""

RECORDED = """\
/brokers
/brokers/ids
/brokers/ids/3 ADDRESS
/brokers/ids/3/master ADDRESS ephemeral
/brokers/ids/3/master_config_checksum CHECKSUM ephemeral
/brokers/topics
/brokers/topics/meta-test
/brokers/topics/meta-test/3-m 1 ephemeral
/brokers/topics/slow
/brokers/topics/slow/3-m 1 ephemeral
/brokers/topics/test
/brokers/topics/test/3-m 2 ephemeral
/brokers/topics/wild*
/brokers/topics/wild*/3-m 2 ephemeral
/brokers/topics/wild-1
/brokers/topics-pub
/brokers/topics-pub/meta-test
/brokers/topics-pub/meta-test/3-m {"numParts":1,"broker":"3-m"} ephemeral
/brokers/topics-pub/slow
/brokers/topics-pub/slow/3-m {"numParts":1,"broker":"3-m"} ephemeral
/brokers/topics-pub/test
/brokers/topics-pub/test/3-m {"numParts":2,"broker":"3-m"} ephemeral
/brokers/topics-pub/wild*
/brokers/topics-pub/wild*/3-m {"numParts":2,"broker":"3-m"} ephemeral
/brokers/topics-pub/wild-1
/brokers/topics-sub
/brokers/topics-sub/meta-test
/brokers/topics-sub/meta-test/3-m {"numParts":1,"broker":"3-m"} ephemeral
/brokers/topics-sub/slow
/brokers/topics-sub/slow/3-m {"numParts":1,"broker":"3-m"} ephemeral
/brokers/topics-sub/test
/brokers/topics-sub/test/3-m {"numParts":2,"broker":"3-m"} ephemeral
/brokers/topics-sub/wild*
/brokers/topics-sub/wild*/3-m {"numParts":2,"broker":"3-m"} ephemeral
/brokers/topics-sub/wild-1
"""
"""What a Java broker 1.4 had registered, below the root, with addresses and the checksum replaced."""


MASTER = "/brokers/ids/3/master"
LONG_MS = 20_000
"""A session that a busy machine does not outlive by itself; tests end it by ``end_session_at``."""


def put(broker: RunningBroker, topic: str) -> None:
    client = broker.client()
    assert client.result(b"put %s 0 1 0 7\r\nx" % topic.encode())[0] == 200
    client.close()


def lines(nodes: list[Node], address: str, checksum: str) -> str:
    """A dump in the form of ``RECORDED``."""
    names = {address: "ADDRESS", checksum: "CHECKSUM"}
    rows = ([each.path, names.get(each.text, each.text), "ephemeral" if each.ephemeral else ""] for each in nodes)
    return "".join(" ".join(filter(None, row)) + "\n" for row in rows)


def test_the_tree_is_the_recorded_one_of_a_java_broker(brokers: Brokers, tmp_path: Path) -> None:
    zookeeper = brokers.zookeeper
    earlier = brokers.start("b", GOLDEN_TOPICS)
    put(earlier, "wild-1")
    topic = '{"numParts":2,"broker":"3-m"}'
    expected = {"topics": "2", "topics-sub": topic, "topics-pub": topic}

    def registered() -> dict[str, str | None]:
        return {folder: zookeeper.text(f"/brokers/{folder}/wild-1/3-m") for folder in expected}

    wait_until(lambda: registered() == expected, "a topic of a pattern is registered")
    assert earlier.stop() == 0
    shutil.rmtree(tmp_path / "b" / "data")
    broker = brokers.start("b", GOLDEN_TOPICS)
    checksum = str(crc32((tmp_path / "b" / "server.ini").read_bytes()))
    assert lines(zookeeper.dump("/brokers"), meta(broker.address), checksum) == RECORDED


def test_a_clean_stop_leaves_no_broker_behind(brokers: Brokers) -> None:
    broker = brokers.start("b")
    assert broker.stop() == 0
    assert [each.path for each in brokers.zookeeper.dump("/brokers") if each.ephemeral] == []
    assert brokers.zookeeper.text("/brokers/ids/3") is None
    assert brokers.zookeeper.text("/brokers/topics-pub/test") == ""
    assert brokers.zookeeper.text("/members/3") == meta(broker.address), "it may come back"


def test_a_broker_that_is_gone_for_good_is_forgotten(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    option = brokers.zookeeper.option
    broker = brokers.start("b")
    for wanted_status, out, error in (
        (1, "", "broker 3 is registered as running (master, master_config_checksum); stop it first"),
        (0, f"broker 3 is forgotten at {option}\n", ""),
        (1, "", "no broker 3 is known there"),
    ):
        assert main(["forget", "--zookeeper", option, "3"]) == wanted_status
        assert capsys.readouterr() == (out, f"metaq-broker: {error}\n" if error else "")
        if wanted_status == 1 and broker.process.poll() is None:
            broker.kill()
            wait_until(lambda: brokers.master() is None, "its session has expired")
    assert brokers.zookeeper.dump("/members") == [Node("/members", False, "")]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--zookeeper", "zk1:2181", "1024"], "broker id '1024': expected 0..1023"),
        (["--zookeeper", "zk1:x", "3"], "'zk1:x': expected host:port,host:port/root"),
        (["--zookeeper", "127.0.0.1:1/", "3"], "expected host:port,host:port/root"),
    ],
)
def test_arguments_of_forget(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["forget", *arguments])
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err


SLAVE = "[slave]\nslaveId=1\nmaster=127.0.0.1:{port}\n"


def test_a_slave_stands_beside_its_master(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    master = brokers.start("b")
    slave = brokers.start("s", "[topic=test]\n" + SLAVE.format(port=master.address.port))
    assert zookeeper.text("/brokers/ids/3/slave1") == meta(slave.address)
    assert zookeeper.text("/brokers/topics-sub/test/3-s1") == '{"numParts":2,"broker":"3-s1"}'
    assert zookeeper.text("/brokers/ids/3") == zookeeper.text("/members/3") == meta(master.address)
    assert master.stop() == 0
    assert zookeeper.text("/brokers/ids/3") == ""
    assert slave.stop() == 0
    assert zookeeper.text("/brokers/ids/3") is None
    assert zookeeper.text("/members/3") == meta(master.address)


def test_a_slave_looks_its_master_up(brokers: Brokers) -> None:
    """As MetaQ's slaves do, also when the master comes back elsewhere."""
    slave = brokers.start("s", "[topic=test]\n[slave]\nslaveId=1\nslaveMaxDelayInMills=100\n")
    master = brokers.start("b")
    put(master, "test")
    segment = slave.data / "test-0" / f"{0:020}.meta"
    wait_until(lambda: segment.exists() and segment.stat().st_size > 0, "the first message is copied")
    before = segment.stat().st_size
    assert master.stop() == 0
    master = brokers.start("b")
    put(master, "test")
    wait_until(lambda: segment.stat().st_size > before, "what came at the new address is copied")


def test_a_slave_that_is_promoted_takes_its_masters_place(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    master = brokers.start("b")
    slave = brokers.start("s", "[topic=test]\n" + SLAVE.format(port=master.address.port))
    master.kill()
    done = run_broker_command("ctl", "--data", slave.data, "promote", "--force")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: brokers.master() == meta(slave.address), "the old master's session has expired")
    path = "/brokers/topics-pub/test/3-m"
    wait_until(lambda: zookeeper.text(path) is not None, "its topics are a master's")
    assert zookeeper.text("/brokers/ids/3/slave1") is None
    assert zookeeper.text("/brokers/topics-pub/test/3-s1") is None
    assert zookeeper.text("/members/3") == meta(slave.address)


def test_what_is_not_offered_is_not_registered(brokers: Brokers) -> None:
    topics = "[topic=shut]\nacceptPublish=false\n[topic=hidden]\nacceptSubscribe=false\n"
    earlier = brokers.start("b", topics + "[topic=former]\nnumPartitions=5\n")
    for topic in ("former", "hidden"):
        put(earlier, topic)
    assert earlier.stop() == 0
    brokers.start("b", topics)
    found = [
        each.path.removeprefix("/brokers/") for each in brokers.zookeeper.dump("/brokers") if each.path.endswith("-m")
    ]
    assert found == [
        "topics/former/3-m",
        "topics/hidden/3-m",
        "topics/shut/3-m",
        "topics-pub/hidden/3-m",
        "topics-sub/former/3-m",  # still there to be read
        "topics-sub/shut/3-m",
    ]
    assert brokers.zookeeper.text("/brokers/topics/former/3-m") == "1"


def test_a_reload_shows_in_the_tree_and_wakes_who_watches_children(brokers: Brokers) -> None:
    zookeeper = brokers.zookeeper
    broker = brokers.start("b", "[topic=test]\n[topic=same]\n")
    events: list[str] = []
    path = f"{zookeeper.root}/brokers/topics-pub"
    for topic in ("test", "same"):
        zookeeper.client.get_children(f"{path}/{topic}", watch=lambda event: events.append(event.path))
    before = zookeeper.text("/brokers/ids/3/master_config_checksum")
    ini = brokers.write("b", "[topic=test]\nnumPartitions=4\n[topic=same]\n[topic=new]\n")
    broker.process.send_signal(1)
    text = '{"numParts":4,"broker":"3-m"}'
    wait_until(lambda: zookeeper.text("/brokers/topics-pub/test/3-m") == text, "the new number is registered")
    wait_until(lambda: zookeeper.text("/brokers/topics-sub/new/3-m") is not None, "the new topic is registered")
    assert zookeeper.text("/brokers/ids/3/master_config_checksum") == str(crc32(ini.read_bytes())) != before
    wait_until(lambda: events == [f"{path}/test"], "the watch has been told")


def test_a_broker_that_was_killed_starts_again_at_once(brokers: Brokers, tmp_path: Path) -> None:
    killed = brokers.start("b", zkSessionTimeoutMs=LONG_MS)
    put(killed, "test")
    killed.kill()
    assert brokers.master() == meta(killed.address), "its nodes are still there, its session has not expired"
    waits = "waiting for the broker id, it is still registered"
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(brokers.start, "b", zkSessionTimeoutMs=LONG_MS)
        wait_until(lambda: any(waits in log.read_text() for log in tmp_path.glob("broker-*.log")), waits)
        brokers.zookeeper.end_session_at(MASTER)
        again = starting.result()
    assert brokers.master() == meta(again.address)
    assert brokers.zookeeper.text("/brokers/topics-pub/test/3-m") is not None


def test_clients_are_served_while_an_earlier_session_runs_out(brokers: Brokers) -> None:
    """With the port of before: whoever is registered there cannot be alive."""
    killed = brokers.start("b", zkSessionTimeoutMs=LONG_MS)
    put(killed, "test")
    killed.kill()
    again = brokers.start("b", port=killed.address.port, zkSessionTimeoutMs=LONG_MS)
    put(again, "test")
    assert "waiting for the broker id, clients are served" in again.log_text()
    assert "registered in ZooKeeper" not in again.log_text()
    brokers.zookeeper.end_session_at(MASTER)
    wait_until(lambda: "registered in ZooKeeper" in again.log_text(), "the old session is over")
    assert brokers.master() == meta(again.address)
    assert again.stop() == 0
    assert brokers.master() is None


@pytest.mark.parametrize(
    "missing", ["/brokers/ids/3/master", *rarely("/brokers/topics-sub/test/3-m", "/brokers/ids/3")]
)
def test_nodes_that_somebody_deletes_are_made_again(brokers: Brokers, missing: str) -> None:
    """As a Java gregor does with the topics of its master when it starts."""
    broker, zookeeper = brokers.start("b"), brokers.zookeeper
    before = zookeeper.text(missing)

    def is_said() -> bool:  # not the first time, if it is one of the changes right after the start
        with suppress(NotEmptyError):  # what was below it is there again already
            zookeeper.client.delete(f"{zookeeper.root}{missing}", recursive=True)
        wait_until(lambda: zookeeper.text(missing) == before, "the node is there again")
        wait_until(lambda: brokers.master() == meta(broker.address), "with what was below it")
        return "nodes were deleted or changed by others, they are created again" in broker.log_text()

    wait_until(is_said, "the broker says so")


def test_a_second_broker_of_the_same_id_is_refused(brokers: Brokers) -> None:
    first = brokers.start("first")
    second = run_broker_command("start", "-f", brokers.write("second"))
    assert (second.returncode, second.stdout) == (1, "")
    assert re.search(
        r"metaq-broker: broker id 3 is taken: another broker, meta://127\.0\.0\.1:\d+, is registered in ZooKeeper at "
        r"127\.0\.0\.1:\d+/\S+ and was still there after 8 s\. Every broker needs an id of its own\n$",
        second.stderr,
    ), second.stderr
    assert brokers.master() == meta(first.address)
    assert brokers.zookeeper.text("/brokers/ids/3") == meta(first.address)
    other = brokers.start("other", broker_id=4)
    assert brokers.master(4) == meta(other.address)


def test_a_start_that_waits_can_be_stopped(brokers: Brokers) -> None:
    brokers.start("first")
    ini = brokers.write("second", zkSessionTimeoutMs=60_000)
    waits_until_stopped(ini, "waiting for the broker id")


def test_zookeeper_frozen_beyond_the_session(brokers: Brokers) -> None:
    server = brokers.zookeeper.server
    broker = brokers.start("b")
    server.freeze()
    until_s = time.monotonic() + 2 * SESSION_S
    wait_until(lambda: "ZooKeeper is away" in broker.log_text(), "the broker has noticed")
    put(broker, "test")
    wait_until(lambda: time.monotonic() > until_s, "its session is over by the broker's reckoning")
    server.thaw()
    wait_until(lambda: broker.log_text().count("registered in ZooKeeper") >= 2, "it is registered again")
    wait_until(lambda: brokers.master() == meta(broker.address), "the node is there")
    assert brokers.zookeeper.text("/brokers/topics-sub/test/3-m") is not None
    assert broker.stop() == 0


def stop_and_continue(process: subprocess.Popen[str]) -> Callable[[], None]:
    process.send_signal(19)
    return lambda: process.send_signal(18)


def test_an_expired_session_is_followed_by_another(brokers: Brokers) -> None:
    broker = brokers.start("b")
    go_on = stop_and_continue(broker.process)
    wait_until(lambda: brokers.master() is None, "ZooKeeper has given the broker up")
    assert brokers.zookeeper.text("/brokers/ids/3") == meta(broker.address), "where it was stays known"
    go_on()
    wait_until(lambda: brokers.master() == meta(broker.address), "it is registered again")
    wait_until(lambda: brokers.zookeeper.text("/brokers/topics-sub/test/3-m") is not None, "with its topics")


def test_zookeeper_killed_and_started_again(brokers: Brokers) -> None:
    broker = brokers.start("b", "[topic=*]\n")
    brokers.zookeeper.server.kill()
    wait_until(lambda: "ZooKeeper is away" in broker.log_text(), "the broker has noticed")
    put(broker, "meanwhile")
    brokers.zookeeper.server.start()
    path = "/brokers/topics-pub/meanwhile/3-m"
    wait_until(lambda: brokers.zookeeper.text(path) is not None, "what came meanwhile is registered")
    assert brokers.master() == meta(broker.address)


def test_operators_see_how_it_stands(brokers: Brokers) -> None:
    broker = brokers.start("b")

    def state() -> str:
        lines = run_broker_command("ctl", "--data", broker.data, "status").stdout.splitlines()
        return next(line for line in lines if line.startswith("zookeeper")).split(maxsplit=1)[1]

    assert state() == f"{brokers.zookeeper.option}, registered"
    brokers.zookeeper.server.kill()
    wait_until(lambda: "away: the connection was lost" in state(), "the broker has noticed")


def test_a_stop_without_zookeeper_does_not_wait_for_it(brokers: Brokers) -> None:
    broker = brokers.start("b")
    brokers.zookeeper.server.kill()
    wait_until(lambda: "ZooKeeper is away" in broker.log_text(), "the broker has noticed")
    assert broker.stop() == 0


def test_who_takes_the_id_while_a_broker_is_away_keeps_it(brokers: Brokers) -> None:
    first = brokers.start("first")
    go_on = stop_and_continue(first.process)
    wait_until(lambda: brokers.master() is None, "ZooKeeper has given the broker up")
    second = brokers.start("second")
    go_on()
    wait_until(lambda: "ZooKeeper, clients are still served" in first.log_text(), "the first has noticed")
    assert brokers.master() == meta(second.address)
    put(first, "test")
    assert second.stop() == 0
    wait_until(lambda: brokers.master() == meta(first.address), "the first has its id again")
