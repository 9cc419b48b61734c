"""The bundled broker as a process for RocketMQ's clients: a recording of a real broker, kills, both protocols."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, wait_until, write_ini
from fix_tls import Certificates
from recorded_differences import OF_SENDS_AND_PULLS
from remoting_headers import pull_header, send_header
from request_replay import AS_RECORDED, Asker, SendPullReplay, Wire, steps

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.client.group_consumer import GroupConsumer
from metaq.client.metaq import MetaQ
from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.client.rocketmq.records import RocketMessage
from metaq.errors import MetaqError
from metaq.model import Message
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.frames import encode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, SUSPEND
from metaq.protocols.remoting.headers.sends import SendMessage

pytestmark = pytest.mark.process

OPAQUES: Final = itertools.count(1)


@pytest.fixture
def golden(start_broker: StartBroker, tmp_path: Path) -> Iterator[Wire]:
    """A connection to a broker that is configured as the recorded one."""
    ini = write_ini(tmp_path, AS_RECORDED, hostName="127.0.0.1")
    with closing(Wire(start_broker("start", "-f", ini).rocketmq_address)) as wire:
        yield wire


def test_a_recording_of_a_real_broker(golden: Wire) -> None:
    replay = SendPullReplay(golden.ask, time.sleep)
    differing = {}
    for step in steps():
        if found := replay.play(step):
            differing[step["step"]["label"]] = found
    assert {label: found for label, found in differing.items() if label not in OF_SENDS_AND_PULLS} == {}
    assert differing.keys() == OF_SENDS_AND_PULLS.keys()


def send(body: bytes = b"x", **more: object) -> RemotingCommand:
    """A send to queue 0 of ``T``, unless something else is given."""
    header = send_header(**{"topic": "T"} | more)
    return to_request(header, body, code=SendMessage.CODE, opaque=next(OPAQUES))


def pull(offset: int, wait_ms: int) -> RemotingCommand:
    sys_flag = SUBSCRIPTION | (SUSPEND if wait_ms else 0)
    header = pull_header(offset, topic="T", sys_flag=sys_flag, suspend_timeout_millis=wait_ms)
    return to_request(header, opaque=next(OPAQUES))


EXPORTED: Final = {
    "autoCreateSubscriptionGroup": "true",
    "autoCreateTopicEnable": "true",
    "brokerClusterName": "GoldenCluster",
    "brokerId": "0",
    "brokerName": "golden-a",
    "brokerRole": "ASYNC_MASTER",
    "fileReservedTime": "168",
    "filterServerNums": "0",
    "flushDiskType": "SYNC_FLUSH",
    "maxMessageSize": "4194304",
    "messageDelayLevel": "1s 5s 10s 30s 60s 120s 180s 240s 300s 360s 420s 480s 540s 600s 1200s 1800s 3600s 7200s",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
    "traceOn": "true",
    "traceTopicEnable": "true",
    "useTLS": "false",
}
"""What ``mqadmin exportConfigs`` wants of every broker, with the values of one that is configured as the recorded."""

CHANGED: Final = {
    "autoCreateSubscriptionGroup": "false",
    "autoCreateTopicEnable": "false",
    "flushDiskType": "ASYNC_FLUSH",
    "maxMessageSize": "1048576",
    "messageDelayLevel": "3s 120s",
    "msgTraceTopicName": "traces",
    "traceTopicEnable": "false",
}


@pytest.mark.parametrize("changed", [{}, CHANGED], ids=["as recorded", "changed"])
def test_the_settings_that_administrators_export(
    start_broker: StartBroker, tmp_path: Path, certificates: Certificates, changed: dict[str, str]
) -> None:
    keys, expected = "".join(f"{name}={value}\n" for name, value in changed.items()), EXPORTED | changed
    ini = write_ini(tmp_path, AS_RECORDED + keys)
    if changed:
        more = f"[system]\ndeletePolicy=delete,48\n{certificates.server_keys}"
        ini.write_text(ini.read_text().replace("[system]\n", more))
        expected |= {"fileReservedTime": "48", "useTLS": "true"}
    with Asker(start_broker("start", "-f", ini).rocketmq_address) as asker:
        shown = asker.settings()
    assert {name: shown.get(name) for name in EXPORTED} == expected


@pytest.mark.parametrize("codec", Codec)
def test_a_pull_waits_for_a_message(golden: Wire, codec: Codec) -> None:
    assert code_of(golden.ask(send())) == 0
    held = replace(pull(1, 20_000), codec=codec)
    golden.post(held)
    assert code_of(golden.ask(send(b"second"))) == 0
    answer = golden.wait(held.opaque)
    assert (answer.code, answer.ext["nextBeginOffset"], answer.codec) == (0, "2", codec)
    assert b"second" in answer.body


@pytest.mark.parametrize("codec", Codec)
def test_a_pull_that_waits_in_vain_is_answered_at_its_deadline(golden: Wire, codec: Codec) -> None:
    golden.ask(send())
    began = time.monotonic()
    answer = golden.ask(replace(pull(1, 300), codec=codec))
    assert answer is not None
    assert (answer.code, answer.ext["nextBeginOffset"], answer.codec) == (19, "1", codec)
    assert time.monotonic() - began >= 0.29


WRONG: Final[list[tuple[RemotingCommand, int, str]]] = [
    (send(bytes(4194305)), 13, "the message is illegal, maybe msg body or properties length not matched."),
    (send(properties="p\x01" + "v" * 32_766), 13, "the message is illegal"),
    (send(topic=""), 1, "The specified topic is blank."),
    (send(topic="no good"), 1, "The specified topic contains illegal characters"),
    (send(topic="t" * 128), 1, "The specified topic is longer than topic max length."),
    (send(topic="SCHEDULE_TOPIC_XXXX"), 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
    (send(queue_id=99), 1, "request queueId[99] is illegal"),
    (send(b"no batch", batch=True), 1, "BufferUnderflowException"),
    (send(b"", batch=True), 13, "the message is illegal"),
    (RemotingCommand(9999), 3, "request type 9999 not supported"),
    (RemotingCommand(310, {}), 1, "The specified topic is blank."),
    (RemotingCommand(11, {"topic": "T"}), 1, "consumerGroup"),
]
"""Requests, with the code and the text that answer them."""

JUNK: Final = [
    b"\xff\xff\xff\xff",
    bytes(8),
    b"GET / HTTP/1.1\r\n\r\n",
    encode(send())[:-3] + b"\0" * 40,
]


def test_bad_input_is_answered_and_nothing_is_stored(golden: Wire) -> None:
    assert code_of(golden.ask(send(b"before"))) == 0
    for number, (wrong, code, text) in enumerate(WRONG):
        answer = golden.ask(replace(wrong, opaque=1_000_000 + number))
        assert answer is not None
        assert answer.code == code, answer.remark
        assert text in (answer.remark or ""), wrong.code
    after = golden.ask(send(b"after"))
    assert after is not None
    assert after.ext["queueOffset"] == "1"


def test_what_is_no_frame_ends_its_connection_and_no_other(golden: Wire) -> None:
    for junk in JUNK:
        with socket.create_connection((golden.address.host, golden.address.port), DEADLINE_S) as rude:
            rude.sendall(junk)
            rude.shutdown(socket.SHUT_WR)
            while rude.recv(1 << 16):
                pass
        assert code_of(golden.ask(send())) == 0


def code_of(answer: RemotingCommand | None) -> int:
    assert answer is not None
    return answer.code


@pytest.fixture
def dev(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return start_broker("dev", tmp_path / "data", "--port", "0")


def test_what_one_protocol_writes_the_other_reads(dev: RunningBroker) -> None:
    with RocketMQ(str(dev.rocketmq_address)) as rocketmq, MetaQ(str(dev.address)) as metaq:
        sent = rocketmq.producer(fixed(0)).send_many(
            "orders",
            [
                RocketMessage(data="one tea", tag="hot", keys=["k1"], properties={"price": "3"}),
                RocketMessage(data="no tag"),
            ],
        )
        metaq.producer(fixed(0)).send_many("orders", [Message(b"two scones", "cold"), Message(b"plain")])
        at_metaq = list(metaq.browse("orders"))
        at_rocketmq = list(rocketmq.browse("orders"))
    assert [(one.data, one.attribute) for one in at_metaq] == [
        (b"one tea", "hot"),
        (b"no tag", None),
        (b"two scones", "cold"),
        (b"plain", None),
    ]
    assert [(one.data, one.tag, one.offset) for one in at_rocketmq] == [
        (b"one tea", "hot", 0),
        (b"no tag", None, 1),
        (b"two scones", "cold", 2),
        (b"plain", None, 3),
    ]
    assert (at_rocketmq[0].keys, at_rocketmq[0].properties["price"]) == (("k1",), "3")
    assert [one.message_id for one in at_rocketmq[:2]] == [one.message_id for one in sent]
    assert at_rocketmq[0].offset_message_id == sent[0].offset_message_id
    assert at_rocketmq[0].timestamp_ms == at_metaq[0].timestamp_ms


def test_a_metaq_group_and_a_rocketmq_group_of_one_name_each_get_every_message(dev: RunningBroker) -> None:
    """Offsets of one count bytes, of the other messages: neither continues where the other one is."""
    with RocketMQ(str(dev.rocketmq_address)) as rocketmq, MetaQ(str(dev.address)) as metaq:
        for bodies in ([f"first {number}".encode() for number in range(20)], [b"second", b"third"]):
            rocketmq.producer().send_many("orders", bodies[:-1])
            metaq.producer().send_many("orders", bodies[-1:])
            with (
                metaq.consumer("shop", ["orders"], start="earliest") as of_metaq,
                rocketmq.consumer("shop", ["orders"], start="earliest") as of_rocketmq,
            ):
                for consumer in (of_metaq, of_rocketmq):
                    assert sorted(fetched(consumer, len(bodies))) == sorted(bodies)
                    consumer.commit()


def fetched(consumer: GroupConsumer | RocketGroupConsumer, count: int) -> list[bytes]:
    """The bodies of the next messages of a group, ``count`` of them, and what comes with the last one."""
    found: list[bytes] = []
    wait_until(
        lambda: found.extend(each.data for each in consumer.fetch(timeout=0.1)) or len(found) >= count, "the messages"
    )
    return found


def test_topics_are_made_and_deleted(dev: RunningBroker) -> None:
    with RocketMQ(str(dev.rocketmq_address)) as rocketmq:
        assert list(rocketmq.cluster.create_topic("orders", 3)) == ["metaq"]
        assert [str(one.partition) for one in rocketmq.cluster.describe("orders")] == ["metaq:0", "metaq:1", "metaq:2"]
        rocketmq.producer().send("orders", "x")
        rocketmq.cluster.delete_topic("orders")
        assert "orders" not in rocketmq.cluster.topics()
        with pytest.raises(ValueError, match=r"0 queues: expected 1\.\.1024"):
            rocketmq.cluster.create_topic("orders", 0)
        with pytest.raises(RequestRefused, match="TBW102"):
            rocketmq.cluster.create_topic("TBW102")


def test_a_topic_is_deleted_with_its_queues_that_cannot_be_opened(start_broker: StartBroker, tmp_path: Path) -> None:
    ini = write_ini(tmp_path, AS_RECORDED, hostName="127.0.0.1")
    broker = start_broker("start", "-f", ini)
    with RocketMQ(str(broker.rocketmq_address)) as rocketmq:
        rocketmq.cluster.create_topic("orders", 2)
        for queue in range(2):
            rocketmq.producer(fixed(queue)).send("orders", "old")
    assert broker.stop() == 0
    (broker.data / "orders-1" / f"{10**6:020d}.meta").write_bytes(b"a gap before it")
    again = start_broker("start", "-f", ini)
    with RocketMQ(str(again.rocketmq_address)) as rocketmq:
        rocketmq.cluster.delete_topic("orders")
        assert list(again.data.glob("orders-*")) == []
        rocketmq.cluster.create_topic("orders", 2)
        assert rocketmq.producer(fixed(1)).send("orders", "new").offset == 0


def test_metaqs_clients_do_not_put_to_topics_in_which_messages_wait(dev: RunningBroker) -> None:
    with MetaQ(str(dev.address)) as metaq, metaq.producer(fixed(0)) as producer:
        for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
            with pytest.raises(MetaqError, match=f"403.*only the broker itself puts messages to topic {topic}"):
                producer.send(topic, "x")


def test_tags_are_message_types(dev: RunningBroker) -> None:
    with RocketMQ(str(dev.rocketmq_address)) as rocketmq, MetaQ(str(dev.address)) as metaq:
        metaq.producer(fixed(0)).send("orders", "from MetaQ", attribute="hot")
        rocketmq.producer(fixed(0)).send("orders", "from RocketMQ", tag="hot")
        rocketmq.producer(fixed(0)).send("orders", "another", tag="cold")
        assert [one.data for one in rocketmq.browse("orders", tags="hot")] == [b"from MetaQ", b"from RocketMQ"]


def test_a_killed_broker_has_everything_that_was_acknowledged(
    start_broker: StartBroker, dev: RunningBroker, tmp_path: Path
) -> None:
    with RocketMQ(str(dev.rocketmq_address)) as rocketmq:
        producer = rocketmq.producer(fixed(0))
        sent = [producer.send("orders", f"{number}", tag="t") for number in range(50)]
        sent += producer.send_many("orders", [f"{number}" for number in range(50, 1000)])
        before = list(rocketmq.browse("orders"))
    dev.kill()
    again = start_broker("dev", tmp_path / "data", "--port", "0")
    with RocketMQ(str(again.rocketmq_address)) as rocketmq:
        after = list(rocketmq.browse("orders"))
        assert [one.offset for one in after] == list(range(1000))
        assert [(one.message_id, one.data, one.tag) for one in after] == [
            (one.message_id, one.data, one.tag) for one in before
        ]
        assert [one.message_id for one in after] == [one.message_id for one in sent]
        assert rocketmq.producer(fixed(0)).send("orders", "next").offset == 1000


def test_conditions_in_sql_of_this_projects_clients(dev: RunningBroker) -> None:
    with RocketMQ(str(dev.rocketmq_address)) as rocketmq:
        producer = rocketmq.producer(fixed(0))
        for price in range(6):
            producer.send("orders", str(price), tag="hot" if price % 2 else "cold", properties={"price": str(price)})
        picked = [one.data for one in rocketmq.browse("orders", sql="price > 1 AND TAGS = 'hot'")]
        with pytest.raises(RequestRefused, match="SUBSCRIPTION_PARSE_FAILED"):
            list(rocketmq.browse("orders", sql="price >"))
        received: list[bytes] = []
        with rocketmq.consumer("shop", ["orders"], sql="price > 3", start="earliest") as consumer:
            producer.send("orders", "last", properties={"price": "9"})
            producer.send("orders", "cheap", properties={"price": "1"})
            for message in consumer:
                received.append(bytes(message.data))
                message.ack()
                if message.data == b"last":
                    break
        with (
            pytest.raises(MetaqError, match=r"character 8"),
            rocketmq.consumer("shop2", ["orders"], sql="price >") as consumer,
        ):
            next(iter(consumer))
    assert picked == [b"3", b"5"]
    assert received == [b"4", b"5", b"last"]
