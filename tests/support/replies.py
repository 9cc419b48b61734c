"""A consumer that replies to requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from metaq import RocketMQ
from metaq.client.rocketmq.records import RocketReceived

LONG_S = 60.0


@contextmanager
def replying(name_server: str, *, to: str = "orders", **options: Any) -> Iterator[list[RocketReceived]]:
    """Reply to the requests that come from now on, but for those that say ``silent``; yields what was replied to.

    ``options`` are of its client.
    """
    begun, ended, replied = threading.Event(), threading.Event(), list[RocketReceived]()

    def run() -> None:
        with RocketMQ(name_server, **options) as mq:
            ends = {info.partition: info.end for info in mq.cluster.describe(to)}
            producer = mq.producer()
            begun.set()
            while not ended.wait(0.02):
                for message in mq.browse(to, start="earliest"):
                    if message.offset >= ends.get(message.partition, 0):
                        ends[message.partition] = message.end
                        if message.data != b"silent":
                            replied.append(message)
                            producer.reply(message, b"reply to " + message.data, tag="red", properties={"own": "x"})

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert begun.wait(LONG_S)
        yield replied
    finally:
        ended.set()
        thread.join(LONG_S)
