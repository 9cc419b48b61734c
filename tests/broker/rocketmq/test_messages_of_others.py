"""Accounts, and messages that a request names by their place only: what waits is its own topic's, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from fix_broker import StartBroker, write_ini
from remoting_headers import pull_header, send_header
from request_replay import Asker, Wire

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.model import Address
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.bodies.groups import HeartbeatData, ProducerData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import ConsumeMessageDirectly, HeartBeat
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.offsets import GetMaxOffset
from metaq.protocols.remoting.headers.pulls import ViewMessageById
from metaq.protocols.remoting.headers.sends import ConsumerSendMsgBack
from metaq.protocols.remoting.headers.transactions import COMMIT, ROLLBACK, EndTransaction

pytestmark = pytest.mark.process

SECRET, PREPARED = "secret-1", 4
ACCOUNTS = """\
accounts:
- accessKey: alice
  secretKey: secret-1
  defaultGroupPerm: SUB
  topicPerms: [hers=PUB|SUB]
- accessKey: bob
  secretKey: secret-1
  defaultGroupPerm: SUB
  topicPerms: [his=PUB|SUB]
- accessKey: carol
  secretKey: secret-1
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [hers=DENY]
- accessKey: dave
  secretKey: secret-1
  defaultGroupPerm: SUB
  topicPerms: [SCHEDULE_TOPIC_XXXX=SUB]
- accessKey: boss
  secretKey: secret-1
  admin: true
"""
OTHERS = ("bob", "carol")
WAITING = {
    "half": (PREPARED, "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01u"),
    "level": (0, "DELAY\x0118"),
    "moment": (0, "TIMER_DELAY_SEC\x01600"),
}
"""What makes a message wait: its sysFlag and its properties."""


class Setting:
    """A broker that asks about half messages every second, and clients by their accounts."""

    def __init__(self, address: Address, stack: ExitStack) -> None:
        self.address, self._stack = address, stack

    def by(self, name: str) -> Asker:
        return self._stack.enter_context(closing(Asker(self.address, Credentials(name, SECRET))))

    def ask(self, name: str, header: Request, body: bytes = b"") -> RemotingCommand:
        return self.by(name).response(header, body)

    def waiting(self, kind: str) -> tuple[int, int]:
        """Have a message of Alice's wait; its place in the log, and its queue offset there."""
        sys_flag, properties = WAITING[kind]
        header = send_header(
            topic="hers", batch=False, sys_flag=sys_flag, properties=properties, producer_group="producers"
        )
        answer = self.by("alice").ask(header, b"one tea")
        place = OffsetMessageId.parse(answer.ext["msgId"]).physical_offset
        return place, int(answer.ext["queueOffset"])

    def delivered(self) -> int:
        return int(self.by("alice").ask(GetMaxOffset(topic="hers", queue_id=0)).ext["offset"])


@pytest.fixture
def setting(start_broker: StartBroker, tmp_path: Path) -> Iterator[Setting]:
    file = tmp_path / "accounts.yml"
    file.write_text(ACCOUNTS)
    front = (
        "[topic=hers]\n[topic=his]\n[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport=0\naclEnable=true\n"
        f"aclFile={file}\ntransactionTimeOut=500\ntransactionCheckInterval=500\n"
    )
    broker = start_broker("start", "-f", write_ini(tmp_path, front, hostName="127.0.0.1"))
    with ExitStack() as stack:
        yield Setting(broker.rocketmq_address, stack)


def refused(answer: RemotingCommand) -> bool:
    return answer.code == 1 and "No permission for topic hers" in (answer.remark or "")


def end(place: int, offset: int, how: int, *, topic: str | None = None, checked: bool = False) -> EndTransaction:
    return EndTransaction(
        topic=topic,
        producer_group="producers",
        tran_state_table_offset=offset,
        commit_log_offset=place,
        commit_or_rollback=how,
        from_transaction_check=checked,
        msg_id="u",
    )


@pytest.mark.parametrize("other", OTHERS)
def test_a_transaction_is_ended_by_who_may_send_to_its_topic(setting: Setting, other: str) -> None:
    place, offset = setting.waiting("half")
    for how in (COMMIT, ROLLBACK):
        for topic in (None, "his"):
            for checked in (False, True):
                assert refused(setting.ask(other, end(place, offset, how, topic=topic, checked=checked)))
    with closing(Wire(setting.address)) as wire:
        wire.post(sign(to_request(end(place, offset, ROLLBACK), oneway=True), Credentials(other, SECRET)))
        header = GetMaxOffset(topic="his", queue_id=0)
        wire.ask(sign(to_request(header, opaque=9), Credentials("bob", SECRET)))  # the one before it is carried out
    assert setting.delivered() == 0
    assert setting.ask("alice", end(place, offset, COMMIT)).code == 0
    assert setting.delivered() == 1


@pytest.mark.parametrize("kind", WAITING)
@pytest.mark.parametrize("other", OTHERS)
def test_what_waits_is_read_by_who_may_read_its_topic(setting: Setting, other: str, kind: str) -> None:
    place, _ = setting.waiting(kind)
    message_id = str(OffsetMessageId(bytes(8), place))
    view = ViewMessageById(offset=place)
    assert refused(setting.ask(other, view))
    assert refused(setting.ask(other, ConsumerSendMsgBack(offset=place, group="g", delay_level=0)))
    assert refused(setting.ask(other, ConsumeMessageDirectly(consumer_group="g", client_id="c", msg_id=message_id)))
    assert b"one tea" in setting.ask("alice", view).body


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"])
def test_topics_with_messages_of_all_are_for_who_may_read_all(setting: Setting, topic: str) -> None:
    for kind in WAITING:
        setting.waiting(kind)
    pull = pull_header(0, topic=topic, queue_id=17 if topic.startswith("SCHEDULE") else 0)
    assert "No permission for topic" in str(setting.ask("carol", pull).remark)
    assert b"one tea" in setting.ask("boss", pull).body
    assert (setting.ask("dave", pull).code == 0) == topic.startswith("SCHEDULE")


def test_who_may_not_send_is_not_asked_about_a_half_message(setting: Setting) -> None:
    joins = HeartbeatData(client_id="c", producer_data_set=(ProducerData(group_name="producers"),)).to_json()

    def joined(wire: Wire, name: str) -> None:
        command = to_request(HeartBeat(), joins, opaque=5)
        answer = wire.ask(sign(command, Credentials(name, SECRET)))
        assert answer is not None
        assert answer.code == 0

    with closing(Wire(setting.address)) as bobs, closing(Wire(setting.address)) as hers:
        joined(bobs, "bob")
        setting.waiting("half")
        joined(hers, "alice")
        for _ in range(3):
            assert hers.wait_reported(39).ext["transactionId"] == "u"
        joined(bobs, "bob")  # whatever was sent to him before came before this answer
        assert bobs.reported() == []
