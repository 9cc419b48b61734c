"""Members of a group share a topic: start this program twice, and each message is handled by one of the two.

    python examples/share_the_work.py 127.0.0.1:8123

It ends when nothing has arrived for five seconds. A message whose handling fails is handled again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from metaq import MetaQ


def work(cluster: str, handle: Callable[[str], None], patience_s: float = 5.0) -> int:
    """Handle messages of ``orders`` for the group ``kitchen``; return how many this member had."""
    handled = 0
    with MetaQ(cluster) as mq, mq.consumer("kitchen", ["orders"], auto_ack=False) as consumer:
        while messages := consumer.fetch(max_messages=10, timeout=patience_s):
            for message in messages:
                handle(message.data.decode())
                message.ack()
                handled += 1
            consumer.commit()
    return handled


if __name__ == "__main__":
    print(work(sys.argv[1], print), "handled")
