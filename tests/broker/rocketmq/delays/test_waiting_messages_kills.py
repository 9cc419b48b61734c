"""A broker process that is killed again and again while messages wait: each is delivered, and once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, wait_until, write_ini

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.headers.transactions import COMMIT
from metaq.testing.ports import free_port
from peers.rocketmq.ask import Answer, ask

pytestmark = pytest.mark.process

SEND, PULL, END, MAX_OFFSET = 310, 11, 37, 30
QUEUES = 4
ROUNDS = 3
GROUP = "producers"


class Sender:
    """Sends numbered messages of all kinds that wait, until the broker is gone, and remembers which it took."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.taken: set[str] = set()
        self.sent: set[str] = set()
        self.halves: dict[str, dict[str, object]] = {}
        self._numbers = iter(range(1_000_000))

    def run(self) -> None:
        """Go on until the connection breaks."""
        try:
            while True:
                self.send_one()
        except OSError:
            return

    def send_one(self) -> None:
        """Send the next one."""
        self._one(next(self._numbers))

    def _one(self, number: int) -> None:
        body = str(number)
        self.sent.add(body)
        kind = number % 4
        properties = [
            "DELAY\x011",
            f"TIMER_DELAY_MS\x01{random.randrange(1500)}",
            f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01U{number}",
            f"KEYS\x01{number}",
        ][kind]
        answer = self._ask(SEND, _send_fields(number % QUEUES, properties), body.encode())
        if answer.code:
            return
        if kind != 2:
            self.taken.add(body)
            return
        self.halves[body] = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.fields["queueOffset"],
            "commitLogOffset": OffsetMessageId.parse(answer.fields["msgId"]).physical_offset,
            "commitOrRollback": COMMIT,
            "fromTransactionCheck": "false",
            "msgId": f"U{number}",
        }
        self.taken.add(body)  # is committed, now or at last
        if random.random() < 0.7:
            self.commit(body)

    def commit(self, body: str) -> Answer:
        """Commit a half message; it may be committed already."""
        return self._ask(END, self.halves[body])

    def _ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> Answer:
        return ask(self.address, code, fields, body, timeout_s=DEADLINE_S)


def _send_fields(queue: int, properties: str) -> dict[str, object]:
    names = "abcdefghij"
    values = [GROUP, "orders", "TBW102", QUEUES, queue, 0, 1, 0, properties, 0]
    return dict(zip(names, values, strict=True))


def delivered(address: str) -> list[str]:
    """The bodies of all messages of the topic."""
    found = []
    for queue in range(QUEUES):
        fields = {"topic": "orders", "queueId": queue}
        end = int(ask(address, MAX_OFFSET, fields).checked().fields["offset"])
        offset = 0
        while offset < end:
            more = {"consumerGroup": "readers", "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4}
            answer = ask(
                address, PULL, {**fields, **more, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
            ).checked()
            found += [record.body.decode() for record in read_records(answer.body)]
            offset = int(answer.fields["nextBeginOffset"])
    return found


def started(start_broker: StartBroker, folder: Path, port: int, threshold: int = 0) -> RunningBroker:
    """Start the broker on its folder and ports."""
    rocketmq = f"[rocketmq]\nenabled=true\nport={port}\nbrokerIP1=127.0.0.1\ntransactionCheckInterval=1000\n"
    rocketmq += "transactionCheckMax=1000000\n"
    topics = "[topic=orders]\nnumPartitions=4\n"
    return start_broker("start", "-f", write_ini(folder, topics + rocketmq, brokerId=1, unflushThreshold=threshold))


def test_every_message_that_waited_is_delivered_once(start_broker: StartBroker, tmp_path: Path) -> None:
    port = free_port()
    sender = Sender(f"127.0.0.1:{port}")
    for _ in range(ROUNDS):
        broker = started(start_broker, tmp_path, port)
        thread = threading.Thread(target=sender.run)
        before = len(sender.taken)
        thread.start()
        wait_until(lambda before=before: len(sender.taken) > before + 60, "messages that wait")  # type: ignore[misc]
        time.sleep(random.uniform(0.0, 1.3))  # not a wait for anything: the moment of the kill
        broker.kill()
        thread.join(DEADLINE_S)
    started(start_broker, tmp_path, port)
    for body in sender.halves:
        sender.commit(body)
    wait_until(lambda: sender.taken <= set(delivered(sender.address)), "all that was taken")
    time.sleep(2.1)  # longer than anything waits: what would come twice has come
    counts = Counter(delivered(sender.address))
    assert {body: count for body, count in counts.items() if count > 1} == {}
    assert sender.taken <= set(counts) <= sender.sent
    assert len(counts) > 50 * ROUNDS


def test_where_topics_are_synced_later_transactions_end_at_once(start_broker: StartBroker, tmp_path: Path) -> None:
    port = free_port()
    broker = started(start_broker, tmp_path, port, threshold=1000)
    assert "unflushThreshold=1000" in (tmp_path / "server.ini").read_text()
    sender = Sender(f"127.0.0.1:{port}")
    while len(sender.halves) < 20:
        sender.send_one()
        for body in sender.halves:
            answer = sender.commit(body)
            assert answer.code == 0 or "ended before" in answer.remark
    assert broker.stop() == 0
