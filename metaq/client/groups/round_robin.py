"""Which of its partitions a consumer hands out of next: round robin, a bounded number of messages of each. Pure.

Partitions that may have messages wait in a queue. The one in front hands out ``SHARE`` messages and goes to the end.
One that has nothing leaves the queue until something of it was fetched. So a message waits for at most ``SHARE``
messages of each other partition, however many those have. A partition that waits alone has no such limit.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Final, Generic

from metaq.client.groups.deliveries import D
from metaq.client.groups.owned import Owned

SHARE: Final = 128
"""Messages of one partition that are handed out before the next one is looked at."""


class RoundRobin(Generic[D]):
    """Not thread-safe."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Owned[D, Any, Any], None] = OrderedDict()
        self._left = SHARE

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, partition: Owned[D, Any, Any]) -> None:
        """A partition may have messages now."""
        self._queue[partition] = None

    def discard(self, partition: Owned[D, Any, Any]) -> None:
        """A partition is not handed out of any more."""
        if partition in self._queue:
            if partition is self.front:
                self._left = SHARE
            del self._queue[partition]

    @property
    def front(self) -> Owned[D, Any, Any] | None:
        """The partition to hand out of."""
        return next(iter(self._queue), None)

    @property
    def left(self) -> int:
        """How many messages of it may be handed out."""
        return self._left if len(self._queue) > 1 else sys.maxsize

    def handed(self, count: int) -> None:
        """So many messages of it were."""
        self._left -= count
        if self._left <= 0:
            self.go_on(stays=True)

    def go_on(self, *, stays: bool) -> None:
        """Have the next one in front. ``stays``: the one that was may have more messages."""
        partition, _ = self._queue.popitem(last=False)
        self._left = SHARE
        if stays:
            self._queue[partition] = None
