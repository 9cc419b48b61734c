"""Allow lists over a real broker: who may publish, subscribe, use transactions and look; what a refusal says."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, wait_until
from fix_tls import Certificates, ini_text, launch_with, tls_session

from metaq.backends.metaq.session import Session
from metaq.formats.checksum import checksum
from metaq.formats.frames import encode_body, encode_frame
from metaq.model import LocalTransactionId, Message, Xid
from metaq.net.tls import TlsSettings
from metaq.protocols.text.commands import (
    Command,
    Copy,
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
    Put,
    PutBatch,
    ReportTypes,
    Result,
    Stats,
    Sync,
    TransactionCommand,
    Value,
    Version,
)

pytestmark = pytest.mark.process

TOPICS = """[topic=orders]
allowPublish=shop,Shop Two
allowSubscribe=shop,billing
[topic=open]
allowPublish=*
[topic=closed]
allowPublish=nobody
[topic=misc-*]
"""
XID = Xid(1, b"g", b"b", "u")
FRAME = encode_frame(0, *encode_body(Message(b"x", "kind")))


def put(topic: str) -> Put:
    return Put(topic, 0, b"x", 0, 0, None)


def publishing(topic: str) -> list[Command]:
    return [put(topic), PutBatch(topic, 0, FRAME, 1, 0)]


def subscribing(topic: str) -> list[Command]:
    return [
        Get(topic, "g", 0, 0, 100, 0),
        GetOffset(topic, "g", 0, 0, 0),
        GetFiltered(topic, "g", 0, 0, 100, ("a",), 0),
        ReportTypes("2.1", "g", topic, 0, 0, ("a",)),
        Fetch("2.1", topic, "g", 0, 0, 100, 0, 0),
    ]


def start(folder: Path, certificates: Certificates, auth: str, system: str) -> RunningBroker:
    lines = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\ntlsClientAuth={auth}\n{system}"
    return launch_with(folder, lines, TOPICS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[RunningBroker]:
    """One where only ``admin`` may do what no topic's list says."""
    system = "allowPublish=admin\nallowSubscribe=admin\n"
    broker = start(tmp_path_factory.mktemp("access"), certificates, "optional", system)
    with closing(tls_session(broker, certificates.client("filler", common_name="shop"))) as session:
        assert reported(session, put("orders")) == 200
    yield broker
    broker.end()


Connect = Callable[[str], Session]


@pytest.fixture
def connect(broker: RunningBroker, certificates: Certificates) -> Iterator[Connect]:
    """``connect(name)`` as the client of that name; "" has no certificate."""
    opened: list[Session] = []

    def connect(name: str) -> Session:
        settings = certificates.client(name) if name else TlsSettings(certificates.ca_file)
        opened.append(tls_session(broker, settings))
        return opened[-1]

    yield connect
    for session in opened:
        session.close()


def reported(session: Session, command: Command) -> int | str:
    """200 for success, the text of a 403, another code with its text."""
    reply = session.call(command)
    if isinstance(reply, Value) or reply.code == 200:
        return 200
    return reply.text if reply.code == 403 else f"{reply.code} {reply.text}"


@pytest.mark.parametrize(
    ("name", "topic", "may_publish", "may_subscribe"),
    [
        ("shop", "orders", True, True),
        ("billing", "orders", False, True),
        ("admin", "orders", False, False),
        ("stranger", "orders", False, False),
        ("", "orders", False, False),
        ("stranger", "open", True, False),
        ("", "open", True, False),
        ("nobody", "closed", True, False),
        ("admin", "closed", False, True),
        ("admin", "misc-1", True, True),
        ("shop", "misc-1", False, False),
    ],
)
def test_who_may_do_what(connect: Connect, name: str, topic: str, may_publish: bool, may_subscribe: bool) -> None:
    session = connect(name)
    who = f"client {name}" if name else "a client without certificate"
    for command in publishing(topic):
        refused = f"{who} may not publish to topic {topic} (allowPublish)"
        assert reported(session, command) == (200 if may_publish else refused)
    for command in subscribing(topic):
        outcome = reported(session, command)
        if may_subscribe:
            assert outcome == 200 or str(outcome).startswith(("404", "301"))
        else:
            assert outcome == f"{who} may not subscribe to topic {topic} (allowSubscribe)"


def test_a_common_name_counts_as_well(broker: RunningBroker, certificates: Certificates) -> None:
    with closing(tls_session(broker, certificates.client("second.example", common_name="Shop Two"))) as session:
        assert reported(session, put("orders")) == 200
        assert (
            reported(session, put("closed"))
            == "client Shop Two, second.example may not publish to topic closed (allowPublish)"
        )


def test_a_refused_put_stores_nothing_and_leaves_its_neighbours_alone(connect: Connect) -> None:
    shop, billing = connect("shop"), connect("billing")
    end = int(shop.ask(GetOffset("orders", "g", 0, 2**62, 0)))
    opaques = [billing.post(put(topic)) for topic in ("orders", "open", "orders", "open", "closed")]
    codes = [reply.code for reply in map(billing.wait, opaques) if isinstance(reply, Result)]
    assert codes == [403, 200, 403, 200, 403]
    assert int(shop.ask(GetOffset("orders", "g", 0, 2**62, 0))) == end


def test_a_slave_takes_messages_of_masters_that_may_publish(tmp_path: Path, certificates: Certificates) -> None:
    lines = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n"
    broker = launch_with(tmp_path, lines, f"[gregor]\n{TOPICS}")
    steps: list[Command] = [
        Sync("orders", 0, b"x", 0, 1, 0, checksum(b"x")),
        Copy("orders", 0, FRAME, 0, 0, 0, 0, "0" * 32, 0),
    ]
    with closing(tls_session(broker, certificates.client("billing"))) as other:
        refused = "client billing may not publish to topic orders (allowPublish)"
        assert [reported(other, step) for step in steps] == [refused] * 2
    with closing(tls_session(broker, certificates.client("shop"))) as master:
        assert reported(master, steps[0]) == 200
    broker.end()


def test_transactions_are_for_those_who_may_publish_something(tmp_path: Path, certificates: Certificates) -> None:
    broker = launch_with(
        tmp_path,
        f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\nallowPublish=admin\n",
        "[topic=orders]\nallowPublish=shop\nallowSubscribe=billing,shop\n",
    )
    shop, billing = (tls_session(broker, certificates.client(name)) for name in ("shop", "billing"))
    refused = "client billing may not use transactions (allowPublish)"
    steps: list[Command] = [
        TransactionCommand(XID, "s", "BEGIN", 0),
        TransactionCommand(LocalTransactionId("s", 1), "s", "BEGIN", 0),
        TransactionCommand(None, "s", "RECOVER", 0),
        Decide("q", 1, (), 0),
    ]
    assert [reported(billing, step) for step in steps] == [refused] * 4
    assert [reported(shop, step) for step in steps] == [200] * 4
    billing.send(TransactionCommand(XID, "s", "END", 5))
    assert reported(billing, Version(0)) == 200, "the refused END has no reply either"
    assert reported(shop, put("orders")._replace(transaction=XID)) == 200
    assert reported(billing, TransactionCommand(XID, "s", "ROLLBACK", 0)) == refused
    assert reported(billing, put("orders")._replace(transaction=XID)) == (
        "client billing may not publish to topic orders (allowPublish)"
    )
    assert reported(shop, TransactionCommand(XID, "s", "COMMIT_ONE_PHASE", 0)) == 200
    assert reported(billing, Stats("", 0)) == 200
    stranger = tls_session(broker, certificates.client("stranger"))
    assert reported(stranger, Stats("config", 0)) == 200, "everyone may subscribe to other topics"
    for session in (shop, billing, stranger):
        session.close()
    broker.end()


def test_branches_and_queries_belong_to_those_who_may_write_their_topics(
    tmp_path: Path, certificates: Certificates
) -> None:
    lines = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\nallowPublish=admin\n"
    topics = "[topic=orders]\nallowPublish=shop\n[topic=bills]\nallowPublish=billing\n"
    broker = launch_with(tmp_path, lines, topics)
    shop, billing = (tls_session(broker, certificates.client(name)) for name in ("shop", "billing"))
    refused = "client billing may not publish to topic orders (allowPublish)"
    steps: list[Command] = [
        TransactionCommand(XID, "s", "BEGIN", 0, None, "u"),
        put("orders")._replace(transaction=XID),
    ]
    assert [reported(shop, step) for step in (*steps, TransactionCommand(XID, "s", "PREPARE", 0))] == [200] * 3
    ends: list[Command] = [
        TransactionCommand(XID, "s", "ROLLBACK", 0),
        TransactionCommand(XID, "s", "COMMIT_TWO_PHASE", 0),
        Decide("other", 1, (XID,), 0),
        Decide("u", 2**63 - 1, (), 0),
        TransactionCommand(None, "s", "FORGET", 0, None, "u"),
    ]
    assert [reported(billing, step) for step in ends] == [refused] * 5
    listed = TransactionCommand(None, "s", "RECOVER", 0)
    assert (billing.ask(listed), shop.ask(listed)) == ("", str(XID))
    assert reported(shop, Decide("u", 1, (XID,), 0)) == 200
    assert [reported(billing, step) for step in ends[3:]] == [refused] * 2
    for session in (shop, billing):
        session.close()
    broker.end()
    broker = launch_with(tmp_path, lines, topics)
    shop, billing = (tls_session(broker, certificates.client(name)) for name in ("shop", "billing"))
    assert [reported(billing, step) for step in ends[3:]] == [refused] * 2, "the journal knows the topics of a decision"
    assert reported(shop, Decide("u", 2, (), 0)) == 200
    assert reported(billing, Decide("another", 1, (), 0)) == 200
    for session in (shop, billing):
        session.close()
    broker.end()


def test_looking_is_for_those_who_may_do_something(tmp_path: Path, certificates: Certificates) -> None:
    broker = launch_with(
        tmp_path,
        f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\nallowPublish=a\nallowSubscribe=b\n",
    )
    for name, may_look in (("a", True), ("b", True), ("c", False)):
        with closing(tls_session(broker, certificates.client(name))) as session:
            assert reported(session, Version(0)) == 200
            refused = f"client {name} may not look at the broker (allowPublish, allowSubscribe)"
            assert reported(session, Stats("config", 0)) == (200 if may_look else refused)
    broker.end()


def test_waiting_messages_are_read_by_who_may_read_all_topics(tmp_path: Path, certificates: Certificates) -> None:
    lines = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n"
    topics = "[topic=orders]\nallowSubscribe=a,b\n[topic=bills]\nallowSubscribe=a\n[rocketmq]\nenabled=true\nport=0\n"
    broker = launch_with(tmp_path, lines, topics)
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
        for name, may_read in (("a", True), ("b", False)):
            with closing(tls_session(broker, certificates.client(name))) as session:
                refused = f"client {name} may not subscribe to topic {topic} (allowSubscribe)"
                for command in subscribing(topic):
                    assert (reported(session, command) == refused) != may_read
    broker.end()


def test_a_reload_changes_lists_for_connections_that_are_open(tmp_path: Path, certificates: Certificates) -> None:
    lines = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n"
    broker = launch_with(tmp_path, lines, "[topic=t]\nallowPublish=a\n")
    with closing(tls_session(broker, certificates.client("b"))) as session:
        assert reported(session, put("t")) != 200
        (tmp_path / "server.ini").write_text(ini_text(tmp_path / "data", lines, "[topic=t]\nallowPublish=b\n"))
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: reported(session, put("t")) == 200, "the new list")
    broker.end()


def test_the_warning_is_printed_once_when_others_can_reach_the_port(tmp_path: Path, certificates: Certificates) -> None:
    for lines, count in (
        ("bindAddress=0.0.0.0\n", 1),
        (f"bindAddress=0.0.0.0\n{certificates.server_keys}", 0),
        ("", 0),
    ):
        broker = launch_with(tmp_path, lines)
        assert broker.log_text().count("WARNING: bindAddress=0.0.0.0 without TLS") == count
        broker.end()
