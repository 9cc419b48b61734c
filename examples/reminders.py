"""RocketMQ: a message that arrives later, for those who subscribe to its tag.

    python examples/reminders.py 127.0.0.1:9876

The address belongs to a name server, or to the bundled broker's RocketMQ port.
"""

from __future__ import annotations

import sys
import time

from metaq import RocketMQ


def remind(cluster: str, text: str, seconds: int) -> float:
    """Send a reminder and wait until it arrives; return the seconds that it took."""
    with RocketMQ(cluster) as mq:
        mq.topics.create("notes")
    with RocketMQ(cluster) as mq, mq.consumer("reminders", ["notes"], tags="reminder") as consumer:
        producer, began = mq.producer(), time.monotonic()
        producer.send("notes", "not for this group", tag="other")
        producer.send("notes", text, tag="reminder", delay=seconds)
        for message in consumer:
            if message.data.decode() == text:
                return time.monotonic() - began
    raise RuntimeError("the consumer was stopped")


if __name__ == "__main__":
    print(f"after {remind(sys.argv[1], 'buy milk', 3):.1f} s")
