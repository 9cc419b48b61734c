"""A consumer of a group in a process of its own. It writes a line for each handled message::

    MILLISECONDS SINCE 1970 \\t TEXT

A line ``expire`` on its standard input ends its session at ZooKeeper; the end of the input ends it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from metaq import MetaQ
from metaq.client.group_consumer import GroupConsumer
from metaq.discovery.zk_client import end_session
from metaq.net.clock import wall_clock_ms


def parse_start(text: str) -> Any:
    """Parse ``earliest``, ``latest`` or milliseconds since 1970."""
    return datetime.fromtimestamp(int(text) / 1000, UTC) if text.isdecimal() else text


def main(cluster: str, topic: str, group: str, name: str, start: str, save_s: str, session_s: str, log: str) -> None:
    """Consume until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    options: dict[str, Any] = {"consumer_id": name, "start": parse_start(start), "poll_max_s": 0.1, "drain_s": 2.0}
    times: dict[str, Any] = {"save_s": float(save_s), "session_s": float(session_s)}
    with MetaQ(cluster) as mq, mq.consumer(group, [topic], **options, **times) as consumer:
        threading.Thread(target=_obey, args=(consumer,), daemon=True).start()
        consumer.run(lambda message: os.write(out, f"{wall_clock_ms()}\t{message.data.decode()}\n".encode()))


def _obey(consumer: GroupConsumer) -> None:
    for line in sys.stdin:
        if line.strip() == "expire":
            membership: Any = consumer._metaq._membership
            end_session(membership._client)
    consumer.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
