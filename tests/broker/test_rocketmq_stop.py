"""A clean stop of the broker while RocketMQ's clients send: what is stored is acknowledged, and the other way round."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from fix_broker import DEADLINE_S, StartBroker, wait_until
from remoting_headers import pull_header, send_header

from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.model import Address
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.offsets import GetMaxOffset
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, SUSPEND
from metaq.protocols.remoting.headers.sends import SendMessage

pytestmark = pytest.mark.process

SENDERS: Final = 6
IN_FLIGHT: Final = 100
BEFORE_THE_STOP: Final = 2000


class Sender(threading.Thread):
    """Keeps many sends in flight on one connection until the broker ends it; ``acknowledged`` are their bodies."""

    def __init__(self, address: Address, name: str) -> None:
        super().__init__(name=name)
        self._socket = socket.create_connection((address.host, address.port), DEADLINE_S)
        self._numbers = itertools.count()
        self._sent: dict[int, str] = {}
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.start()

    def run(self) -> None:
        """Send and read until the end of the connection."""
        decoder = FrameDecoder()
        with self._socket, suppress(ConnectionResetError):
            self._fill()
            while data := self._socket.recv(1 << 16):
                for answer in decoder.receive(data):
                    self._answered(answer)
                if len(self._sent) < IN_FLIGHT * 3 // 4:
                    with suppress(ConnectionResetError, BrokenPipeError):  # what was answered is read still
                        self._fill()

    def _fill(self) -> None:
        self._socket.sendall(b"".join(encode(self._next()) for _ in range(IN_FLIGHT - len(self._sent))))

    def _next(self) -> RemotingCommand:
        number = next(self._numbers)
        self._sent[number] = f"{self.name}-{number}"
        header = send_header(queue_id=number % 4)
        body = self._sent[number].encode()
        return to_request(header, body, code=SendMessage.CODE, opaque=number)

    def _answered(self, answer: RemotingCommand) -> None:
        (self.refused if answer.code else self.acknowledged).append(self._sent.pop(answer.opaque))


def test_what_is_stored_is_acknowledged(start_broker: StartBroker, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for number in range(3):
        broker = start_broker("dev", tmp_path / "data", "--port", "0")
        address = broker.rocketmq_address
        senders = [Sender(address, f"{number}-{each}") for each in range(SENDERS)]
        wait_until(lambda: sum(len(each.acknowledged) for each in senders) > BEFORE_THE_STOP, "many sends")  # noqa: B023
        assert broker.stop() == 0
        for sender in senders:
            sender.join(DEADLINE_S)
            assert not sender.is_alive()
            acknowledged += sender.acknowledged
            assert sender.refused == []
        assert "closed at shutdown" not in broker.log_text()
    again = start_broker("dev", tmp_path / "data", "--port", "0")
    with RocketMQ(str(again.rocketmq_address)) as rocketmq:
        stored = Counter(bytes(each.data).decode() for each in rocketmq.browse("t"))
    assert stored == Counter(acknowledged)
    assert set(stored.values()) == {1}


def test_a_stop_answers_pulls_that_wait(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    address = broker.rocketmq_address
    with RocketMQ(str(address)) as rocketmq:
        rocketmq.producer(fixed(0)).send("t", "x")
    header = pull_header(1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=60_000)
    with socket.create_connection((address.host, address.port), DEADLINE_S) as waiting:
        end = GetMaxOffset(topic="t", queue_id=0)
        waiting.sendall(encode(to_request(header, opaque=1)) + encode(to_request(end, opaque=2)))
        decoder, answers = FrameDecoder(), list[RemotingCommand]()
        while not answers:
            answers += decoder.receive(waiting.recv(1 << 16))
        assert broker.stop() == 0
        while data := waiting.recv(1 << 16):
            answers += decoder.receive(data)
    assert [(each.opaque, each.code) for each in answers] == [(2, 0), (1, 19)]
