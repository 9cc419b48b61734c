"""A member of a consumer group, with this project's client, for test_mixed_group.py; arguments as JavaMember.java."""

from __future__ import annotations

import sys
import threading
import time
from typing import Literal

from metaq import MetaQ
from metaq.client.groups.deliveries import Delivery


def main(hosts: str, root: str, topic: str, group: str, consumer_id: str, session_ms: str, kind: str, to: str) -> None:
    """Read until the standard input ends."""
    strategy: Literal["range", "consistent"] = "range" if kind == "DEFAULT" else "consistent"
    with (
        open(to, "a", encoding="utf-8") as out,
        MetaQ(f"zk://{hosts}{root}") as mq,
        mq.consumer(
            *(group, [topic]),
            consumer_id=consumer_id,
            session_s=int(session_ms) / 1000,
            assignment=strategy,
            poll_max_s=0.2,
        ) as consumer,
    ):

        def handle(message: Delivery) -> None:
            out.write(f"{int(time.time() * 1000)}\t{message.partition}\t{message.data.decode()}\n")
            out.flush()

        def leave() -> None:
            sys.stdin.read()
            consumer.stop()

        threading.Thread(target=leave, daemon=True).start()
        consumer.run(handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
