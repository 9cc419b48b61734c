"""Two hundred RocketMQ consumers that ask for messages and never read the answers: what they take of the memory."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from fix_broker import RunningBroker
from fix_tls import launch_with

from metaq import RocketMQ
from metaq.model import Partition
from metaq.protocols.remoting.command import request
from metaq.protocols.remoting.frames import encode
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.testing.ports import free_port

pytestmark = pytest.mark.process

MIB = 1 << 20
LIMIT_BYTES = 128 * MIB
CONNECTIONS, PULLS = 200, 100


def memory_bytes(broker: RunningBroker) -> int:
    """Memory of the broker's process that is not mapped from files, such as those of compiled loops."""
    (kib,) = re.findall(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{broker.process.pid}/status").read_text())
    return int(kib) << 10


def pull(topic: str) -> bytes:
    """Ask for the first 32 messages of a topic's first queue."""
    header = PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=4,  # with a subscription
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    return encode(request(PullMessage.CODE, header.ext(PullMessage.CODE), opaque=7))


def test_consumers_that_never_read_take_half_as_much_again_at_most(tmp_path: Path) -> None:
    port = free_port()
    section = f"[topic=*]\n[rocketmq]\nenabled=true\nport={port}\nbrokerName=broker-a\nbrokerIP1=127.0.0.1\n"
    section += f"maxBufferedBytes={LIMIT_BYTES}\n"
    broker = launch_with(tmp_path, "", section)
    with RocketMQ(f"127.0.0.1:{port}") as mq, ExitStack() as clients:
        where = Partition("broker-a", 0)
        mq.producer().send_many("t", [bytes(32 << 10)] * 32, partition=where)
        before = memory_bytes(broker)
        for _ in range(CONNECTIONS):
            client = clients.enter_context(closing(socket.create_connection(("127.0.0.1", port), 60)))
            client.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):  # those that hold most are cut
                client.send(pull("t") * PULLS)
        for number in range(20):
            mq.producer().send("t", b"%d" % number, partition=where)
            assert memory_bytes(broker) - before < 1.5 * LIMIT_BYTES
    broker.end()
