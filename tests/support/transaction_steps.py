"""A member of a producer group that dies at a step of a transaction: ``transaction_steps.py SERVERS TOPIC STEP FILE``.

Its own work is to write the message's id to the file. It dies when the half message is stored (``sent``), when its work
is done (``done``), when the broker is told and has not answered (``reported``), or while it is asked (``asked``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from metaq.backends.rocketmq.half_messages import Outcome
from metaq.backends.rocketmq.session import Session
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived

STEPS = ("sent", "done", "told", "asked")


def run_and_die(servers: str, topic: str, step: str, done: Path) -> None:
    """Run a member in a process of its own, until it has died at ``step``."""
    command = [sys.executable, __file__, servers, topic, step, str(done)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 9


def die() -> None:
    os._exit(9)


def check(message: RocketReceived) -> Outcome:
    die()  # while it is asked
    return "unknown"


def main(servers: str, topic: str, step: str, done: str) -> None:
    producer = RocketMQ(servers).transactional_producer(f"group-{topic}", check, heartbeat_s=0.1)
    transaction = producer.transaction()
    sent = transaction.send(topic, step, keys=[step])
    if step == "sent":
        die()
    Path(done).write_text(sent.message_id)
    if step == "done":
        die()
    if step == "told":
        Session.wait = lambda *_: die()  # type: ignore[method-assign, assignment]
        transaction.commit()
    transaction.leave()
    threading.Event().wait(20)


if __name__ == "__main__":
    main(*sys.argv[1:])
