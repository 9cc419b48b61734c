"""Which requests are let through: accounts with signatures and permissions, and allow lists of certificates' names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.rocketmq.access import Access
from metaq_broker.rocketmq.groups.members import ClientIdentity, ConsumerGroup
from metaq_broker.rocketmq.session import Call
from metaq_broker.serve.accounts.account_list import AccountList, Permission, parse_accounts
from metaq_broker.serve.session import Client
from remoting_brokers import CONFIG, FakeSession, Front, access_to

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import Record
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.headers import REQUESTS
from metaq.protocols.remoting.headers.administration import UpdateAndCreateTopic
from metaq.protocols.remoting.headers.fields import Right

FILE = """\
accounts:
- accessKey: reader
  secretKey: 12345678
  topicPerms: [orders=SUB, both=PUB|SUB, dead=DENY]
  groupPerms: [readers=SUB, closed=DENY]
- accessKey: writer
  secretKey: 12345678
  topicPerms: [orders=PUB]
- accessKey: boss
  secretKey: 12345678
  admin: true
- accessKey: open
  secretKey: 12345678
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  whiteRemoteAddress: 10.9.9.9
"""

HEARTBEAT = {
    "clientID": "1",
    "consumerDataSet": [{"groupName": "readers", "subscriptionDataSet": [{"topic": "orders"}]}],
    "producerDataSet": [{"groupName": "anything"}],
}


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return guarded(Front(tmp_path), parse_accounts(FILE))


def guarded(front: Front, accounts: AccountList | None) -> Front:
    """The front whose every request is looked at. What is let through is answered with 77."""
    front.dispatcher.access = access_to(front, accounts, LetThrough)
    return front


class LetThrough(Access):
    def check(self, call: Call) -> RemotingCommand:
        return super().check(call) or call.request.reply(77)


def command(code: int, ext: dict[str, str] | None = None, body: object = b"") -> RemotingCommand:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return RemotingCommand(code, ext or {}, data, opaque=7)


def signed(made: RemotingCommand, name: str, secret: str = "12345678") -> RemotingCommand:
    return sign(made, Credentials(name, secret))


def passes(front: Front, made: RemotingCommand, name: str | None, session: FakeSession | None = None) -> bool:
    response = front.ask_raw(made if name is None else signed(made, name), session)
    assert response.code in (1, 77)
    assert response.code == 77 or str(response.remark).startswith("org.apache.rocketmq.acl.common.AclException: ")
    return response.code == 77


TOPIC = {"topic": "orders", "queueId": "0"}
GROUP = {"consumerGroup": "readers"}
ADMIN_CODES = sorted(code for code, header in REQUESTS.items() if header.RIGHT is Right.ADMIN)
IN_BODY_CODES = sorted(code for code, header in REQUESTS.items() if header.RIGHT is Right.IN_BODY)
OPEN_CODES = sorted(code for code, header in REQUESTS.items() if header.RIGHT is Right.OPEN)
NEEDS: list[tuple[int, dict[str, str], Any, str]] = [
    (10, TOPIC, b"", "writer"),
    (310, {"b": "orders"}, b"", "writer"),
    (320, {"b": "orders", "m": "true"}, b"", "writer"),  # 4.9.7 does not look
    (324, TOPIC, b"", "writer"),
    (325, {"b": "orders"}, b"", "writer"),
    (325, {"b": "DefaultCluster_REPLY_TOPIC"}, b"", ""),
    (370, TOPIC, b"", "writer"),
    (37, TOPIC, b"", "writer"),
    (11, TOPIC | GROUP, b"", "reader"),
    (361, TOPIC | GROUP, b"", "reader"),
    (31002, TOPIC | GROUP, b"", "reader"),
    (14, TOPIC | GROUP, b"", "reader"),
    (15, TOPIC | GROUP, b"", "reader"),
    (12, TOPIC, b"", "reader"),
    (222, TOPIC | {"group": "readers"}, b"", "reader"),
    (29, TOPIC, b"", "reader writer"),
    (30, TOPIC, b"", "reader writer"),
    (31, TOPIC, b"", "reader writer"),
    (32, TOPIC, b"", "reader writer"),
    (34, {}, HEARTBEAT, "reader"),
    (34, {}, {"clientID": "1", "producerDataSet": [{"groupName": "p"}]}, "reader writer"),
    (35, GROUP | {"clientID": "1"}, b"", "reader"),
    (35, {"clientID": "1", "producerGroup": "p", "consumerGroup": ""}, b"", "reader writer"),
    (36, {"group": "readers"}, b"", "reader"),
    (38, GROUP, b"", "reader"),
    (307, GROUP | {"clientId": "1"}, b"", "reader"),
    (309, GROUP | {"clientId": "1", "msgId": "0"}, b"", "reader"),
    (46, {}, {"clientId": "1", "group": "readers", "subscriptionData": {"topic": "orders"}}, "reader"),
    (41, {}, {"consumerGroup": "readers", "clientId": "1", "mqSet": []}, "reader"),
    (
        42,
        {},
        {
            "consumerGroup": "readers",
            "clientId": "1",
            "mqSet": [{"topic": "orders", "brokerName": "b", "queueId": 0}],
        },
        "reader",
    ),
    (11, {"topic": "%RETRY%readers", "queueId": "0"} | GROUP, b"", "reader"),
    (310, {"b": "%RETRY%readers"}, b"", "reader"),
    (33, {"offset": "0"}, b"", "reader writer"),  # its topic is not known yet
    (21, {}, b"", "reader writer"),
    (9999, {}, b"", "reader writer"),
    *((int(code), {}, b"", "") for code in sorted(ADMIN_CODES)),
]


@pytest.mark.parametrize(("code", "ext", "body", "who"), NEEDS)
def test_what_an_account_needs(front: Front, code: int, ext: dict[str, str], body: Any, who: str) -> None:
    made = command(code, ext, body)
    allowed = [name for name in ("reader", "writer", "boss") if passes(front, made, name)]
    assert allowed == [*who.split(), "boss"]
    assert not passes(front, made, None)
    if code not in ADMIN_CODES:
        assert passes(front, made, "open")


def with_topics(code: int, *topics: str) -> object:
    """The body of a request of the group ``readers``, with such topics."""
    queues = [{"topic": topic, "brokerName": "b", "queueId": 0} for topic in topics]
    subscriptions = [{"topic": topic} for topic in topics]
    match code:
        case 34:
            group = {"groupName": "readers", "subscriptionDataSet": subscriptions}
            return {"clientID": "1", "consumerDataSet": [group]}
        case 46:
            return {"clientId": "1", "group": "readers", "subscriptionData": subscriptions[-1]}
        case 41 | 42:
            return {"consumerGroup": "readers", "clientId": "1", "mqSet": queues}
    raise NotImplementedError(code)


@pytest.mark.parametrize("code", IN_BODY_CODES)
def test_each_topic_of_a_body_must_be_readable(front: Front, code: int) -> None:
    for readable in (["orders"], ["orders", "both"], ["orders", "%RETRY%readers"]):
        assert passes(front, command(code, {}, with_topics(code, *readable)), "reader")
    for other in ("other", "dead", "%RETRY%closed", "%RETRY%others"):
        made = command(code, {}, with_topics(code, "orders", other))
        assert not passes(front, made, "reader")
        assert passes(front, made, "boss")


@pytest.mark.parametrize("code", OPEN_CODES)
def test_a_name_server_asks_for_no_key(front: Front, code: int) -> None:
    assert passes(front, command(code), None)


def test_denied_and_unlisted_names(front: Front) -> None:
    pull = {"queueId": "0", "consumerGroup": "readers"}
    assert passes(front, command(11, pull | {"topic": "both"}), "reader")
    assert not passes(front, command(11, pull | {"topic": "dead"}), "reader")
    assert not passes(front, command(30, {"topic": "dead", "queueId": "0"}), "reader")
    assert not passes(front, command(11, pull | {"topic": "other"}), "reader")
    assert not passes(front, command(38, {"consumerGroup": "closed"}), "reader")
    assert not passes(front, command(38, {"consumerGroup": "other"}), "reader")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (command(310, {"b": "orders"}), "No accessKey is configured"),
        (command(310, {"b": "orders", "AccessKey": ""}), "No accessKey is configured"),
        (signed(command(310, {"b": "orders"}), "nobody"), "No acl config for nobody"),
        (signed(command(310, {"b": "orders"}), "writer", "87654321"), "Check signature failed for accessKey=writer"),
        (command(310, {"b": "orders", "AccessKey": "writer"}), "Check signature failed for accessKey=writer"),
        (signed(command(17, {"topic": "T"}), "writer"), "Need admin permission for request code=17, but accessKey="),
        (signed(command(310, {"b": "other"}), "writer"), "No permission for topic other: accessKey=writer needs PUB"),
        (signed(command(38, GROUP), "writer"), "No permission for group readers: accessKey=writer needs SUB"),
        (signed(command(30, {"topic": "x"}), "writer"), "No permission for topic x: accessKey=writer needs PUB or SUB"),
    ],
)
def test_refusals(front: Front, made: RemotingCommand, reason: str) -> None:
    old = front.ask_raw(made)
    assert old.code == 1
    assert str(old.remark).startswith(f"org.apache.rocketmq.acl.common.AclException: {reason}")
    new = front.ask_raw(dataclasses.replace(made, version=479))
    assert (new.code, str(new.remark).startswith(reason)) == (16, True)


def test_what_is_signed_cannot_be_changed(front: Front) -> None:
    made = signed(command(310, {"b": "orders", "e": "0"}, b"body"), "writer")
    assert passes(front, made, None)
    assert not passes(front, dataclasses.replace(made, ext={**made.ext, "b": "both"}), None)
    assert not passes(front, dataclasses.replace(made, body=b"other"), None)
    assert not passes(front, dataclasses.replace(made, ext={**made.ext, "added": "1"}), None)
    late = dataclasses.replace(made, ext={**made.ext, "_UNIQUE_KEY_QUERY": "true"}, codec=Codec.BINARY)
    assert passes(front, late, None)


def test_a_body_that_cannot_be_read_is_refused(front: Front) -> None:
    for code in (34, 41, 42, 46):
        response = front.ask_raw(signed(command(code, {}, b"{"), "boss"))
        assert response.code == 1
        assert "JSON" in str(response.remark)


def test_trusted_addresses(tmp_path: Path) -> None:
    front = guarded(Front(tmp_path), parse_accounts("globalWhiteRemoteAddresses: [10.1.2.*]\n" + FILE))
    inside, outside = FakeSession("10.1.2.3:555"), FakeSession("10.1.3.3:555")
    assert passes(front, command(17), None, inside)
    assert not passes(front, command(17), None, outside)
    unsigned = command(310, {"b": "orders", "AccessKey": "open"})
    assert passes(front, unsigned, None, FakeSession("10.9.9.9:555"))
    assert not passes(front, unsigned, None, outside)
    assert passes(front, command(17), None, FakeSession("[::ffff:10.1.2.3]:555"))


# ---- allow lists


LISTS = CONFIG.replace("[zookeeper]", "tlsCertFile=a\ntlsClientCaFile=b\n[zookeeper]").replace(
    "numPartitions=3", "numPartitions=3\nallowPublish=writer.example\nallowSubscribe=reader.example"
)


def named(*names: str) -> FakeSession:
    session = FakeSession()
    session.client = Client("127.0.0.1:5", frozenset(names))
    return session


@pytest.mark.parametrize("accounts", [None, parse_accounts("globalWhiteRemoteAddresses: ['*']\n" + FILE)])
def test_names_of_certificates(accounts: AccountList | None, tmp_path: Path) -> None:
    front = guarded(Front(tmp_path, config=LISTS), accounts)
    send = command(310, {"b": "configured"})
    pull = command(11, {"topic": "configured", "queueId": "0", "consumerGroup": "g"})
    ends = command(30, {"topic": "configured", "queueId": "0"})
    writer, reader, other = named("writer.example", "x"), named("reader.example"), named("other.example")
    assert [passes(front, send, None, each) for each in (writer, reader, other, FakeSession())] == [1, 0, 0, 0]
    assert [passes(front, pull, None, each) for each in (writer, reader, other, FakeSession())] == [0, 1, 0, 0]
    assert [passes(front, ends, None, each) for each in (writer, reader, other)] == [1, 1, 0]
    assert passes(front, command(310, {"b": "free"}), None, other)
    refusal = front.ask_raw(send, other).remark
    assert "No permission for topic configured: allowPublish and allowSubscribe do not name other.example" in str(
        refusal
    )


def test_accounts_and_allow_lists_must_both_agree(tmp_path: Path) -> None:
    front = guarded(Front(tmp_path, config=LISTS), parse_accounts(FILE))
    send = command(310, {"b": "configured"})
    assert passes(front, send, "open", named("writer.example"))
    assert not passes(front, send, "writer", named("writer.example"))
    assert not passes(front, send, "open", named("reader.example"))
    assert not passes(front, send, "boss", named())


def test_a_message_that_is_found_by_its_id(tmp_path: Path) -> None:
    front = Front(tmp_path, config=LISTS)
    access = access_to(front, parse_accounts(FILE))

    def may_read(name: str, topic: str) -> bool:
        call: Any = Call(signed(command(33, {"offset": "0"}), name), named("reader.example"))  # type: ignore[arg-type]
        call.access = access
        return call.refusal_for(topic, Permission.SUB) is None

    assert may_read("reader", "orders")
    assert not may_read("writer", "orders")
    assert may_read("reader", "%RETRY%readers")
    assert not may_read("reader", "%RETRY%others")
    assert may_read("boss", "configured")
    front.dispatcher.access = access
    front.store.messages[5] = Record("orders", 0, 2, b"hello", physical_offset=5)
    front.members.consumer_seen(ClientIdentity("c", "1"), ConsumerGroup("readers"), notify=False)
    ext = {"consumerGroup": "readers", "clientId": "2", "msgId": str(OffsetMessageId(bytes(8), 5))}
    found = front.ask_raw(signed(command(309, ext), "reader"), named("reader.example"))
    assert found.remark == "The Consumer <readers> <2> not online"
    front.store.messages[5] = Record("secret", 0, 2, b"hello", physical_offset=5)
    refused = front.ask_raw(signed(command(309, ext), "reader"), named("reader.example"))
    assert "No permission for topic secret" in str(refused.remark)


def test_without_accounts_and_lists_everything_passes(tmp_path: Path) -> None:
    front = guarded(Front(tmp_path), None)
    assert passes(front, command(17), None)
    assert passes(front, command(34, {}, b"nonsense"), None)  # for the handler to refuse
    assert UpdateAndCreateTopic.RIGHT is Right.ADMIN
