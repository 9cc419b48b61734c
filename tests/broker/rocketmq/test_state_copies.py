"""A broker whose state file is of another time than its messages: none is lost, and the log says what may repeat."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from operated import put
from remoting_headers import commit_of, heartbeat_of_shop, send_header
from request_replay import Asker, Wire
from restarted_broker import RestartedBroker

from metaq.formats.rocketmq.sys_flags import PREPARED
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.pulls import QueryMessage, ViewMessageById

pytestmark = pytest.mark.process

INI = (
    "[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport=0\nmessageDelayLevel=1s 1h\n"
    "transactionTimeOut=300\ntransactionCheckInterval=300\n"
)
OLDER = "rocketmq-state is an older copy"


@pytest.fixture
def restarted(start_broker: StartBroker, tmp_path: Path) -> RestartedBroker:
    return RestartedBroker(start_broker, tmp_path, INI)


def physical(message_id: str) -> int:
    return int(message_id[-16:], 16)


def test_an_older_copy(restarted: RestartedBroker, tmp_path: Path) -> None:
    state, copy = restarted.data / "rocketmq-state", tmp_path / "copy"
    assert OLDER not in restarted.start()
    with Asker(restarted.address) as asker:
        assert asker.create_topic("t", 1).code == 0
        restarted.send(0, "first", keys=["k0"])
        asker.commit("t", "g", 0, 1)
    shutil.copy(state, copy)  # while it runs
    with Asker(restarted.address) as asker:
        assert asker.create_topic("t", 4).code == 0
        early = restarted.send(3, "fourth queue", keys=["k3"])
        restarted.send(0, *(f"delayed {number}" for number in range(3)), delay_level=1)
        wait_until(lambda: len(restarted.bodies()) == 5, "delayed messages")
        asker.commit("t", "g", 0, 4)
        restarted.send(1, "in an hour", delay_level=2)
    restarted.stop()
    shutil.copy(copy, state)

    said = restarted.start()
    assert OLDER in said
    assert "groups go on where they were then, and delayed messages and transactions may be delivered again" in said
    with Asker(restarted.address) as asker:
        assert asker.committed("t", "g", 0) == 1
        restarted.send(0, "delayed anew", delay_level=1)
        wait_until(lambda: b"delayed anew" in restarted.bodies(), "a delayed message")
        found = restarted.bodies()
        assert {b"first", b"fourth queue", b"delayed 0", b"delayed 1", b"delayed 2", b"delayed anew"} == set(found)
        late = restarted.send(2, "late", keys=["k2"])
        assert physical(late[0]) >> 40 > physical(early[0]) >> 40, "numbers that were given before are not given again"
        old = asker.response(ViewMessageById(offset=physical(early[0])))
        assert old.code != 0 or b"fourth queue" in old.body, "an id leads to its message or to none"
        for key, body in (("k0", b"first"), ("k3", b"fourth queue"), ("k2", b"late")):
            wait_until(lambda key=key, body=body: body in lookup(asker, key), f"{key} to be found")  # type: ignore[misc]
    restarted.stop()
    assert OLDER not in restarted.start()


def lookup(asker: Asker, key: str) -> bytes:
    header = QueryMessage(topic="t", key=key, max_num=10, begin_timestamp=0, end_timestamp=(1 << 63) - 1)
    return asker.response(header).body


def test_a_state_that_is_newer_than_the_messages(restarted: RestartedBroker, tmp_path: Path) -> None:
    older = tmp_path / "older"
    restarted.start()
    with Asker(restarted.address) as asker:
        assert asker.create_topic("t", 1).code == 0
        restarted.send(0, "first")
        restarted.send(0, "delayed 0", delay_level=1)
        wait_until(lambda: len(restarted.bodies()) == 2, "a delayed message")
        restarted.stop()
        shutil.copytree(restarted.data, older)
    restarted.start()
    with Asker(restarted.address) as asker:
        restarted.send(0, *(f"delayed {number}" for number in range(1, 9)), delay_level=1)
        wait_until(lambda: len(restarted.bodies()) == 10, "delayed messages")
        asker.commit("t", "g", 0, 10)
    restarted.stop()
    for name in ("rocketmq-state", "rocketmq-mark"):
        shutil.copy(restarted.data / name, older / name)
    shutil.rmtree(restarted.data)
    older.rename(restarted.data)

    said = restarted.start()
    assert "committed offsets were beyond the ends of their queues; the groups go on at the ends" in said
    assert "delayed messages: the position is beyond the end of the queue" in said
    with Asker(restarted.address) as asker:
        assert asker.committed("t", "g", 0) == 2
        restarted.send(0, *(f"new {number}" for number in range(3)), delay_level=1)
        wait_until(lambda: len(restarted.bodies()) == 5, "delayed messages that are new")
    assert restarted.bodies() == [b"first", b"delayed 0", b"new 0", b"new 1", b"new 2"]


DELETED = "ctl delete", "ctl delete, and killed", "ctl delete, put, and killed"


@pytest.mark.parametrize("how", [*DELETED, "ctl move", "the folder is gone"])
def test_groups_begin_at_the_start_of_a_queue_that_was_made_anew(restarted: RestartedBroker, how: str) -> None:
    restarted.start()
    with Asker(restarted.address) as asker:
        assert asker.create_topic("t", 2).code == 0
        for queue in (0, 1):
            restarted.send(queue, *(f"old {number}" for number in range(9)))
            asker.commit("t", "g", queue, 9)
        if how in DELETED:
            restarted.stop()
            restarted.start()
            restarted.ctl("delete", "t", "0", "--force")
            if "put" in how:  # by a client of MetaQ
                assert restarted.broker.client().result(put("t", 0, b"new"))[0] == 200
            if "killed" in how:
                restarted.kill()
                restarted.start()
        elif how == "ctl move":
            restarted.ctl("close", "t", "0")
            restarted.ctl("move", "t", "0", "--to", "4")
            restarted.ctl("open", "t", "0")
        else:
            restarted.stop()
            shutil.rmtree(restarted.data / "t-0")
            restarted.start()
    restarted.send(0, "new 0", "new 1")
    with Asker(restarted.address) as asker:
        assert [asker.committed("t", "g", queue) for queue in (0, 1)] == [0, 9]
    restarted.stop()
    assert "go on at the ends" not in restarted.start()
    with Asker(restarted.address) as asker:
        assert [asker.committed("t", "g", queue) for queue in (0, 1)] == [0, 9]


def test_a_half_message_that_an_older_copy_does_not_know(restarted: RestartedBroker, tmp_path: Path) -> None:
    state, copy = restarted.data / "rocketmq-state", tmp_path / "copy"
    restarted.start()
    with Asker(restarted.address) as asker:
        assert asker.create_topic("t", 1).code == 0
        restarted.send(0, "first")
    restarted.stop()
    shutil.copy(state, copy)
    restarted.start()
    properties = "TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01"
    with closing(Wire(restarted.address)) as wire:
        stored = []
        for number, body in enumerate((b"ended before", b"open")):
            half = send_header(producer_group="shop", sys_flag=PREPARED, properties=f"{properties}U{number}")
            wire.post(to_request(half, body, opaque=number))
            stored.append(wire.wait(number))
            assert stored[-1].code == 0
        wire.post(commit_of(stored[0].ext["queueOffset"], physical(stored[0].ext["msgId"]), 7))
        assert wire.wait(7).code == 0
        wait_until(lambda: len(restarted.bodies()) == 2, "the committed message")
    restarted.stop()
    shutil.copy(copy, state)

    assert OLDER in restarted.start()
    with closing(Wire(restarted.address)) as wire:
        wire.post(heartbeat_of_shop(8))
        assert wire.wait(8).code == 0
        asked = wire.wait_reported(39)
        assert asked.ext["tranStateTableOffset"] == stored[1].ext["queueOffset"]
        wire.post(commit_of(asked.ext["tranStateTableOffset"], int(asked.ext["commitLogOffset"]), 9))
        assert wire.wait(9).code == 0
        wire.post(commit_of(stored[0].ext["queueOffset"], physical(stored[0].ext["msgId"]), 10))
        assert wire.wait(10).code == 1, "it is ended"
    assert restarted.bodies() == [b"first", b"ended before", b"open"]
