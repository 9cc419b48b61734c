"""``ctl shutdown``, alone and with ``--wait``."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, wait_until
from operated import ask, ctl, put, read, report, stored

pytestmark = pytest.mark.process


def test_shutdown_is_a_clean_stop(broker: RunningBroker, ini: Path, start_broker: StartBroker) -> None:
    stored(broker.client(), "orders", 0, b"kept")
    assert report(broker, "shutdown") == ["stopping"]
    assert broker.process.wait(DEADLINE_S) == 0
    assert (broker.data / "clean-shutdown").exists()
    assert read(start_broker("start", "-f", ini).client(), "orders", 0) == [b"kept"]


def test_after_shutdown_with_wait_the_folder_is_free(
    broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    for _ in range(3):
        assert ask(broker, "shutdown", "--wait") == {"stopping": True, "stopped": True}
        broker = start_broker("start", "-f", ini)  # at once: it would be refused if the folder were locked
    assert ask(broker, "status")["pid"] == broker.process.pid


def test_the_wait_has_a_limit(broker: RunningBroker) -> None:
    reader = broker.client()  # does not take its replies: the stop waits for it
    body = b"x" * 500_000
    for number in range(8):
        reader.ask(put("orders", 0, body, number))
    reader.send(b"get orders g 0 0 1048576 1\r\n" * 200)
    wait_until(lambda: ask(broker, "status")["connections"] == 1, "the client is seen")
    answer = ctl("--data", broker.data, "--timeout", "0.5", "shutdown", "--wait")
    assert (answer.status, "no answer to the shutdown within 0.5 s" in answer.error) == (3, True)
    reader.close()
    assert broker.process.wait(DEADLINE_S) == 0


def test_who_asks_during_the_stop_is_answered_so(broker: RunningBroker) -> None:
    reader = broker.client()
    body = b"x" * 500_000
    for number in range(8):
        reader.ask(put("orders", 0, body, number))
    reader.send(b"get orders g 0 0 1048576 1\r\n" * 200)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(ctl("--data", broker.data, "shutdown", "--wait")))
    waiting.start()
    wait_until(lambda: not (broker.data / "control.sock").exists(), "the stop has begun")
    answer = ctl("--data", broker.data, "status")
    assert (answer.status, "is starting or stopping" in answer.error) == (3, True)
    assert not answers
    reader.close()
    waiting.join(DEADLINE_S)
    assert broker.process.wait(DEADLINE_S) == 0
    assert len(answers) == 1
