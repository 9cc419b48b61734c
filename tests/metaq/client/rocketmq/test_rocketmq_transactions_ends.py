"""Transactions of RocketMQ at brokers that refuse, lose and misunderstand, and at secured ones."""

from __future__ import annotations

import ssl

import pytest
from fix_broker import wait_until
from fix_tls import Certificates
from rocketmq_clients import A0, B0, SENDS, Setting

from metaq.backends.rocketmq.half_messages import Outcome
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import TransactionError
from metaq.net.tls import TlsSettings
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.remoting.headers.transactions import EndTransaction
from metaq.testing.rocketmq_server import ScriptedCluster


def unknown(message: RocketReceived) -> Outcome:
    return "unknown"


def ends(setting: Setting) -> list[RemotingCommand]:
    requests = [one for broker in setting.brokers for one in broker.requests]
    return [one for one in requests if one.code == EndTransaction.CODE]


@pytest.mark.parametrize("code", [None, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_an_end_that_may_have_arrived_is_not_reported_twice(
    setting: Setting, caplog: pytest.LogCaptureFixture, how: str, code: ResponseCode | None
) -> None:
    """Some brokers deliver a message again that is committed twice: the broker asks. The bundled one keeps it (14)."""
    for broker in setting.brokers:
        if code is None:
            broker.disconnect(EndTransaction.CODE)
        else:
            broker.refuse(EndTransaction.CODE, code)
    with setting.mq.transactional_producer("g", unknown) as producer:
        transaction = producer.transaction()
        transaction.send("orders", "x", partition=A0)
        transaction.send("orders", "y", partition=B0)
        getattr(transaction, how)()
    assert transaction.state == "left open"
    assert [one.ext["commitOrRollback"] for one in ends(setting)] == ["8" if how == "commit" else "12"] * 2
    assert caplog.text.count(f"a {how} is not known to be stored, the broker keeps it or asks") == 2


def test_a_refused_end_is_raised_after_the_others_were_notified(setting: Setting) -> None:
    setting.cluster.broker("broker-a").refuse(EndTransaction.CODE, 1, "the producer group wrong")
    setting.cluster.broker("broker-b").disconnect(EndTransaction.CODE)
    with setting.mq.transactional_producer("g", unknown) as producer:
        transaction = producer.transaction()
        transaction.send("orders", "x", partition=A0)
        transaction.send("orders", "y", partition=B0)
        with pytest.raises(
            TransactionError, match=r"refused the commit of message \w+ with 1: the producer group wrong"
        ):
            transaction.commit()
    assert (transaction.state, len(ends(setting))) == ("left open", 2)


@pytest.mark.parametrize("message_id", ["xyz", ""])
def test_a_half_message_without_a_place_is_an_error(setting: Setting, message_id: str) -> None:
    def tamper(command: RemotingCommand, response: RemotingCommand) -> RemotingCommand:
        if command.code in SENDS:
            response.ext["msgId"] = message_id  # type: ignore[index]
        return response

    setting.cluster.broker("broker-a").tamper = tamper
    with setting.mq.transactional_producer("g", unknown) as producer:
        with pytest.raises(TransactionError, match="message id"), producer.transaction() as transaction:
            transaction.send("orders", "x", partition=A0)
        assert transaction.state == "rolled back"
    assert not ends(setting)


def test_half_messages_carry_what_brokers_need(setting: Setting) -> None:
    with setting.mq.transactional_producer("g", unknown, compression="zlib", compress_from=10) as producer:
        with pytest.raises(TransactionError), producer.transaction(ask_after=7) as transaction:
            transaction.send("orders", "long " * 100, partition=A0)
        (send,) = setting.sends()
        assert send.code == SendMessage.CODE
        assert (send.ext["a"], send.ext["f"]) == ("g", str(0x4 | 0x301))
        for pair in ("TRAN_MSG\x01true", "PGROUP\x01g", "CHECK_IMMUNITY_TIME_IN_SECONDS\x017"):
            assert pair in send.ext["i"]
        (end,) = ends(setting)  # which this server does not know
        assert end.ext["bname"] == "broker-a"
        assert end.ext["msgId"] in send.ext["i"]
        assert (end.ext["tranStateTableOffset"], end.ext["commitLogOffset"]) == ("0", "0")


def test_a_secured_member_is_known_to_its_broker(certificates: Certificates) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.authority.issue_cert("127.0.0.1").configure_cert(server)
    tls = TlsSettings(ca_file=str(certificates.ca_file))
    with (
        ScriptedCluster(tls=server) as cluster,
        RocketMQ(str(cluster.name_servers[0]), tls=tls) as mq,
        mq.transactional_producer("g", unknown) as producer,
    ):
        wait_until(lambda: producer.reached == {"broker-a"}, "the broker knows it")
