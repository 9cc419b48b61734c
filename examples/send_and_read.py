"""Send three messages and read them back, with the Python client alone.

    python examples/send_and_read.py 127.0.0.1:8123
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from metaq import MetaQ


def send(cluster: str) -> None:
    """Send three orders; returns when the brokers have stored them."""
    with MetaQ(cluster) as mq:
        mq.producer().send_many("orders", ["one tea", "two scones", "one coffee"], keys=["ann", "bob", "ann"])


def read(cluster: str) -> Iterator[str]:
    """Yield every message of the topic that is there now, partition by partition."""
    with MetaQ(cluster) as mq:
        for message in mq.browse("orders"):
            yield message.data.decode()


if __name__ == "__main__":
    send(sys.argv[1])
    for text in read(sys.argv[1]):
        print(text)
