"""Fair order of a consumer's partitions: round robin, with a bounded number of messages of each. Pure.

Partitions that may have messages are in a queue. The first one delivers ``SHARE`` messages and goes to the end. An
empty partition leaves the queue until it has fetched data. So a message waits for at most ``SHARE`` messages of each
other partition. A partition that is alone in the queue has no limit.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, Final, Generic

from metaq.client.groups.deliveries import D
from metaq.client.groups.owned import Owned

SHARE: Final = 128
"""Messages of one partition that are delivered before the next partition."""


class RoundRobin(Generic[D]):
    """A fair order of partitions. Not thread-safe."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Owned[D, Any, Any], None] = OrderedDict()
        self._left = SHARE

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, partition: Owned[D, Any, Any]) -> None:
        """Add a partition that may have messages."""
        self._queue[partition] = None

    def discard(self, partition: Owned[D, Any, Any]) -> None:
        if partition in self._queue:
            if partition is self.front:
                self._left = SHARE
            del self._queue[partition]

    @property
    def front(self) -> Owned[D, Any, Any] | None:
        """The partition to deliver from."""
        return next(iter(self._queue), None)

    @property
    def left(self) -> int:
        """How many messages of ``front`` may be delivered."""
        return self._left if len(self._queue) > 1 else sys.maxsize

    def handed(self, count: int) -> None:
        """Count delivered messages of ``front``."""
        self._left -= count
        if self._left <= 0:
            self.go_on(stays=True)

    def go_on(self, *, stays: bool) -> None:
        """Move to the next partition. ``stays``: the current one may have more messages."""
        partition, _ = self._queue.popitem(last=False)
        self._left = SHARE
        if stays:
            self._queue[partition] = None
