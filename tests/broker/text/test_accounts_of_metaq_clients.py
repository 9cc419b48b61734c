"""Accounts on MetaQ's port: by the names in a certificate, or by the address; and what is said where there are none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_broker import RunningBroker, WireClient, wait_until
from fix_tls import Certificates, launch_with, tls_session
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.ini import ConfigError

from metaq.backends.metaq.session import Session
from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Message, Xid
from metaq.net.tls import TlsSettings
from metaq.protocols.text.commands import (
    Command,
    Get,
    GetOffset,
    GroupRequest,
    Put,
    PutBatch,
    Stats,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.group_bodies import encode_body as encode_fields

pytestmark = pytest.mark.process

ACCOUNTS = """\
accounts:
- accessKey: alice
  secretKey: secret-1
  topicPerms: [orders=PUB|SUB, bills=SUB]
- accessKey: carol
  secretKey: secret-1
  defaultTopicPerm: PUB|SUB
- accessKey: boss
  secretKey: secret-1
  admin: true
"""
TRUSTED = "{}- accessKey: java\n  secretKey: secret-1\n  whiteRemoteAddress: 127.0.0.1\n  topicPerms: [orders=PUB]\n"
XID = Xid(1, b"g", b"b", "u")
FRAME = encode_frame(0, *encode_body(Message(b"x")))
WARNING = "aclEnable=true guards port 0 only"


def launched(folder: Path, accounts: str, system: str = "", keys: str = "aclMetaqPort=true\n") -> RunningBroker:
    (folder / "accounts.yml").write_text(accounts)
    front = f"[rocketmq]\nenabled=true\nport=0\naclEnable=true\naclFile={folder / 'accounts.yml'}\n{keys}"
    return launch_with(folder, system, f"[topic=*]\n[topic=orders]\n[topic=bills]\n{front}")


def publishing(topic: str) -> list[Any]:
    return [Put(topic, 0, b"x", 0, 0, None), PutBatch(topic, 0, FRAME, 1, 0)]


def subscribing(topic: str) -> list[Command]:
    return [Get(topic, "g", 0, 0, 100, 0), GetOffset(topic, "g", 0, 0, 0)]


def reported(session: Session, command: Command) -> int | str:
    """200 for success, the text of a 403, another code."""
    reply = session.call(command)
    if isinstance(reply, Value) or reply.code == 200:
        return 200
    return reply.text if reply.code == 403 else reply.code


def with_certificates(certificates: Certificates) -> str:
    files = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n"
    return f"{files}tlsClientAuth=optional\n"


def test_a_certificate_names_the_account(tmp_path: Path, certificates: Certificates) -> None:
    broker = launched(tmp_path, ACCOUNTS, with_certificates(certificates))

    def check(name: str, topic: str, *, publishes: bool, subscribes: bool) -> None:
        settings = certificates.client(name) if name else TlsSettings(certificates.ca_file)
        who = f"client {name}" if name else "a client without certificate"
        with closing(tls_session(broker, settings)) as session:
            for command in publishing(topic):
                refused = f"{who} may not publish to topic {topic} (aclFile)"
                assert reported(session, command) == (200 if publishes else refused)
            for command in subscribing(topic):
                refused = f"{who} may not subscribe to topic {topic} (aclFile)"
                assert (reported(session, command) == refused) != subscribes
            assert reported(session, Version(0)) == 200
            looks = reported(session, Stats("config", 0))
            assert (looks == 200) == (name in ("alice", "carol", "boss"))

    check("boss", "orders", publishes=True, subscribes=True)
    check("boss", "bills", publishes=True, subscribes=True)
    check("alice", "orders", publishes=True, subscribes=True)
    check("alice", "bills", publishes=False, subscribes=True)
    check("alice", "others", publishes=False, subscribes=False)
    check("carol", "others", publishes=True, subscribes=True)
    check("carol", "SCHEDULE_TOPIC_XXXX", publishes=False, subscribes=False)
    check("mallory", "orders", publishes=False, subscribes=False)
    check("", "orders", publishes=False, subscribes=False)
    assert "WARNING: aclEnable" not in broker.log_text()
    broker.end()


def test_a_group_at_the_broker_needs_its_own_right(tmp_path: Path, certificates: Certificates) -> None:
    accounts = ACCOUNTS.replace("bills=SUB]\n", "bills=SUB]\n  groupPerms: [hers=SUB, sends=PUB]\n")
    broker = launched(tmp_path, accounts, with_certificates(certificates))
    join = encode_fields(token="a", consumer="c", session_ms=1000, topics=["orders"])
    save = encode_fields(token="a", offsets=[["orders", 0, "1-9", None]])
    for name, groups in (("alice", {"hers"}), ("boss", {"hers", "others", "sends"})):
        with closing(tls_session(broker, certificates.client(name))) as session:
            for group in ("hers", "others", "sends"):
                expected = 200 if group in groups else f"client {name} may not use group {group} (aclFile)"
                for action, body in (("join", join), ("save", save), ("list", b"{}")):
                    assert reported(session, GroupRequest(action, group, body, 0)) == expected
            assert reported(session, GroupRequest("names", "-", b"{}", 0)) == 200
    broker.end()


def test_an_address_has_its_account_and_changes_count_at_once(tmp_path: Path) -> None:
    broker = launched(tmp_path, ACCOUNTS)

    def puts(client: WireClient, topic: str) -> str:
        code, text = client.result(b"put %s 0 1 0 1\r\nx" % topic.encode())
        return str(code) if code == 200 else text

    with closing(broker.client()) as client:
        assert puts(client, "orders") == "a client without certificate may not publish to topic orders (aclFile)"
        (tmp_path / "accounts.yml").write_text(TRUSTED.format(ACCOUNTS))
        wait_until(lambda: puts(client, "orders") == "200", "the account that lists the address")
        assert "may not publish to topic bills" in puts(client, "bills")
        everybody = "globalWhiteRemoteAddresses: [127.0.0.1]\n"
        (tmp_path / "accounts.yml").write_text(everybody + ACCOUNTS)
        wait_until(lambda: puts(client, "bills") == "200", "an address that needs no account")
    broker.end()


def test_a_branch_is_ended_by_who_may_publish_to_its_topics(tmp_path: Path, certificates: Certificates) -> None:
    broker = launched(tmp_path, ACCOUNTS, with_certificates(certificates))
    begin, end = (TransactionCommand(XID, "s", step, 0) for step in ("BEGIN", "ROLLBACK"))
    with closing(tls_session(broker, certificates.client("boss"))) as boss:
        assert reported(boss, begin) == 200
        assert reported(boss, publishing("bills")[0]._replace(transaction=XID)) == 200
        for name, refused in (
            ("alice", "client alice may not publish to topic bills (aclFile)"),
            ("mallory", "client mallory may not do this without an account (aclFile)"),
        ):
            with closing(tls_session(broker, certificates.client(name))) as other:
                assert reported(other, end) == refused
        assert reported(boss, end) == 200
    broker.end()


@pytest.mark.parametrize(("keys", "said"), [("", 1), ("aclMetaqPort=true\n", 0)])
def test_a_start_with_accounts_for_one_port_only_says_so(tmp_path: Path, keys: str, said: int) -> None:
    broker = launched(tmp_path, ACCOUNTS, keys=keys)
    assert broker.log_text().count(WARNING) == said
    with closing(broker.client()) as client:
        code, _ = client.result(b"put orders 0 1 0 1\r\nx")
    assert code == (200 if said else 403)
    broker.end()


def test_lists_for_all_clients_need_no_warning(tmp_path: Path, certificates: Certificates) -> None:
    lists = f"{with_certificates(certificates)}allowPublish=a\nallowSubscribe=a\n"
    broker = launched(tmp_path, ACCOUNTS, lists, keys="")
    assert WARNING not in broker.log_text()
    broker.end()


def test_it_needs_accounts() -> None:
    text = (
        "[system]\nbrokerId=0\nhostName=127.0.0.1\nserverPort=8123\ndataPath=/tmp/d\nunflushThreshold=0\n"
        "unflushInterval=10000\nmaxSegmentSize=1073741824\nmaxTransferSize=1048576\nnumPartitions=1\n"
        "[rocketmq]\nenabled=true\naclMetaqPort=true\n"
    )
    with pytest.raises(ConfigError, match="aclMetaqPort: has no effect without aclEnable=true"):
        parse(text.encode(), "test.ini")
