"""A member of a consumer group, with this project's client; arguments are those of JavaMember.java or PushMember.java.

::

    python group_member.py 127.0.0.1:2181 /meta topic group consumer-id 2000 DEFAULT a.log
    python group_member.py nameServers=127.0.0.1:9876 topic=T group=g log=a.log state=a.state
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

from metaq import MetaQ, RocketMQ

Strategy = Literal["range", "consistent"]


def consume(consumer: Any, log: str) -> None:
    """Read until the standard input ends."""

    def handle(message: Any) -> None:
        out.write(f"{int(time.time() * 1000)}\t{message.partition}\t{message.data.decode()}\n")
        out.flush()

    def leave() -> None:
        sys.stdin.read()
        consumer.stop()

    threading.Thread(target=leave, daemon=True).start()
    with open(log, "a", encoding="utf-8") as out:
        consumer.run(handle)


def show(consumer: Any, topic: str, state: Path) -> None:
    """Replace ``state`` several times a second."""
    made = state.with_suffix(".new")
    while True:
        queues = [str(where.partition) for where in consumer.assignment if where.topic == topic]
        made.write_text("\n".join([consumer.consumer_id, *queues, ""]))
        os.replace(made, state)
        time.sleep(0.2)


def of_metaq(hosts: str, root: str, topic: str, group: str, name: str, session_ms: str, kind: str, log: str) -> None:
    strategy: Strategy = "range" if kind == "DEFAULT" else "consistent"
    options = {"consumer_id": name, "session_s": int(session_ms) / 1000, "assignment": strategy, "poll_max_s": 0.2}
    with MetaQ(f"zk://{hosts}{root}") as mq, mq.consumer(group, [topic], **options) as consumer:
        consume(consumer, log)


def of_rocketmq(*, nameServers: str, topic: str, group: str, log: str, state: str, **more: str) -> None:
    strategy: Strategy = "consistent" if more.get("consistent") == "1" else "range"
    ordered = more.get("ordered") == "1"
    with (
        RocketMQ(nameServers) as mq,
        mq.consumer(group, [topic], ordered=ordered, assignment=strategy) as consumer,
    ):
        threading.Thread(target=show, args=(consumer, topic, Path(state)), daemon=True).start()
        consume(consumer, log)


if __name__ == "__main__":
    if "=" in sys.argv[1]:
        of_rocketmq(**dict(one.split("=", 1) for one in sys.argv[1:]))
    else:
        of_metaq(*sys.argv[1:])
