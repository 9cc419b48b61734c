"""Locks of queues at their brokers, for members that read in order: one member at a time has a queue.

A broker drops a lock that was not renewed for 60 s; a member renews its locks every 20 s, and counts a lock as lost
that it could not renew for 30 s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from metaq.backends.rocketmq.groups.group_requests import ANSWER_S, GroupRequests
from metaq.errors import MetaqError, TlsRefused, WrongServer
from metaq.model import TopicPartition
from metaq.net.clock import Clock

RENEW_S: Final = 20.0
VALID_S: Final = 30.0

_LOG: Final = logging.getLogger(__name__)


class MemberLocks:
    """The locks of a member. A thread renews them and calls ``on_change`` when one is lost."""

    def __init__(self, requests: GroupRequests, clock: Clock) -> None:
        self._requests, self._clock, self._group = requests, clock, requests.group
        self._lock = threading.RLock()  # held during requests, until their outcome is recorded
        self._locked: dict[TopicPartition, float] = {}
        self._stopped = threading.Event()
        self._on_change: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=f"metaq-locks-{requests.group}", daemon=True)

    def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * ANSWER_S)

    def lock(self, queues: Collection[TopicPartition]) -> set[TopicPartition]:
        """Lock queues, or renew their locks; return the queues that are locked now.

        Raises:
            WrongServer, TlsRefused: A broker cannot be connected to, and a retry does not help.
        """
        with self._lock:
            for broker_name, of_broker in _by_broker(queues).items():
                now_s = self._clock.monotonic()
                try:
                    mine = self._requests.lock(broker_name, of_broker)
                except (WrongServer, TlsRefused):
                    raise
                except MetaqError as error:
                    _LOG.warning("group %s: queues of %s cannot be locked now: %s", self._group, broker_name, error)
                    mine = {one for one in of_broker if now_s - self._locked.get(one, -VALID_S) < VALID_S}
                    now_s = -1.0
                for queue in of_broker:
                    if queue not in mine:
                        self._locked.pop(queue, None)
                    elif now_s >= 0:
                        self._locked[queue] = now_s
            return {queue for queue in queues if queue in self._locked}

    def renew(self, queues: Collection[TopicPartition]) -> set[TopicPartition]:
        """Renew the locks of ``queues`` that were never lost; return the queues that are still locked.

        A lock that was not renewed in time, because the process was frozen, counts as lost even if it is free now:
        another member may have held it meanwhile.
        """
        with self._lock:
            now_s = self._clock.monotonic()
            for queue in [queue for queue, since_s in self._locked.items() if now_s - since_s >= VALID_S]:
                del self._locked[queue]
            return self.lock([queue for queue in queues if queue in self._locked])

    def until_s(self, queue: TopicPartition) -> float:
        """Until when a queue is locked, as far as its broker has confirmed."""
        return self._locked.get(queue, -VALID_S) + VALID_S

    def unlock(self, queues: Collection[TopicPartition]) -> None:
        """Release locks; locks that cannot be released expire."""
        with self._lock:
            for broker_name, of_broker in _by_broker(one for one in queues if one in self._locked).items():
                for queue in of_broker:
                    del self._locked[queue]
                try:
                    self._requests.unlock(broker_name, of_broker)
                except MetaqError as error:
                    _LOG.warning("group %s: queues of %s cannot be unlocked: %s", self._group, broker_name, error)

    def _run(self) -> None:
        while not self._stopped.wait(RENEW_S):
            with self._lock:  # nothing may be unlocked during the renewal
                queues, kept = set(self._locked), set[TopicPartition]()
                with suppress(WrongServer, TlsRefused):  # the next division raises it
                    kept = self.renew(queues)
            if kept != queues:
                self._on_change()


def _by_broker(queues: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for where in queues:
        found.setdefault(where.partition.broker_name, []).append(where)
    return found
