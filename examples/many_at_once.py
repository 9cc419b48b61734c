"""Asyncio: sends that share round trips, and a consumer in the same program.

    python examples/many_at_once.py 127.0.0.1:8123
"""

from __future__ import annotations

import asyncio
import sys

from metaq import AsyncMetaQ


async def echo(cluster: str, count: int) -> list[str]:
    """Send ``count`` messages to ``pings`` at once, and return what the group ``echo`` receives of them, sorted."""
    received: list[str] = []
    async with AsyncMetaQ(cluster) as mq, mq.producer() as producer:
        await asyncio.gather(*(producer.send("pings", f"ping {number:03}") for number in range(count)))
        async with mq.consumer("echo", ["pings"]) as consumer:
            while len(received) < count:
                received += [message.data.decode() for message in await consumer.fetch(timeout=10)]
    return sorted(received)


if __name__ == "__main__":
    print(len(asyncio.run(echo(sys.argv[1], 100))), "received")
