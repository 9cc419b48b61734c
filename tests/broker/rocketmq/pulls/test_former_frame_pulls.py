"""Readers of earlier versions on the broker's machine accept a place in a file: they are sent the frames."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_broker import DEADLINE_S, RunningBroker, launch_in

from metaq.client.rocketmq.client import RocketMQ
from metaq.formats.frames import walk

pytestmark = pytest.mark.process

COUNT = 300
REST = "[zookeeper]\nzk.zkEnable=false\n[topic=orders]\n[rocketmq]\nenabled=true\nport=0\nbrokerName=broker-a\n"
REQUEST = (
    b'{"code":31002,"extFields":{"consumerGroup":"readers","topic":"orders","queueId":"0","queueOffset":"0",'
    b'"maxMsgNums":"256","maxMsgBytes":"33554432","asFile":"true","bname":"broker-a"},"flag":0,"language":"PYTHON",'
    b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":407}'
)
"""The header of the first request of such a reader."""


@pytest.fixture(params=["", "localReads=true\n"], ids=["default", "true"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker with messages, whose configuration may still have the former key."""
    broker = launch_in(tmp_path, f"{request.param}{REST}")
    with RocketMQ(str(broker.rocketmq_address)) as mq:
        mq.producer().send_many("orders", [b"%d" % number for number in range(COUNT)])
    yield broker
    broker.stop()
    broker.end()


def answer_to(broker: RunningBroker, header: bytes) -> tuple[dict[str, Any], bytes]:
    """Send a request without body; return the header of the response and its body."""
    request = len(header).to_bytes(4, "big") + header
    address = broker.rocketmq_address
    with socket.create_connection((address.host, address.port), DEADLINE_S) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        with connection.makefile("rb") as received:
            response = received.read(int.from_bytes(received.read(4), "big"))
    header_end = 4 + int.from_bytes(response[1:4], "big")
    return json.loads(response[4:header_end]), response[header_end:]


def test_the_frames_are_sent(broker: RunningBroker) -> None:
    header, body = answer_to(broker, REQUEST)
    assert (header["code"], header["opaque"]) == (0, 7)
    assert (header["extFields"]["beginOffset"], header["extFields"]["nextBeginOffset"]) == ("0", "256")
    assert "asFile" not in header["extFields"]
    assert [frame.message.payload for frame in walk(body)] == [b"%d" % number for number in range(256)]
