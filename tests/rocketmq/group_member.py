"""A member of a group of RocketMQ's, with this project's client; arguments are those of PushMember.java.

::

    python group_member.py nameServers=127.0.0.1:9876 topic=T group=g log=a.log state=a.state
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from metaq import RocketMQ
from metaq.client.rocketmq.group_consumer import RocketGroupConsumer
from metaq.client.rocketmq.groups.deliveries import RocketDelivery


def show(consumer: RocketGroupConsumer, topic: str, state: Path) -> None:
    """Replace ``state`` several times a second."""
    made = state.with_suffix(".new")
    while True:
        queues = [str(where.partition) for where in consumer.assignment if where.topic == topic]
        made.write_text("\n".join([consumer.consumer_id, *queues, ""]))
        os.replace(made, state)
        time.sleep(0.2)


def main(given: dict[str, str]) -> None:
    """Read until the standard input ends."""
    topic = given["topic"]
    with (
        open(given["log"], "a", encoding="utf-8") as out,
        RocketMQ(given["nameServers"]) as mq,
        mq.consumer(
            *(given["group"], [topic]),
            ordered=given.get("ordered") == "1",
            assignment="consistent" if given.get("consistent") == "1" else "range",
        ) as consumer,
    ):

        def handle(message: RocketDelivery) -> None:
            out.write(f"{int(time.time() * 1000)}\t{message.partition}\t{message.data.decode()}\n")
            out.flush()

        def leave() -> None:
            sys.stdin.read()
            consumer.stop()

        threading.Thread(target=leave, daemon=True).start()
        threading.Thread(target=show, args=(consumer, topic, Path(given["state"])), daemon=True).start()
        consumer.run(handle)


if __name__ == "__main__":
    main(dict(one.split("=", 1) for one in sys.argv[1:]))
