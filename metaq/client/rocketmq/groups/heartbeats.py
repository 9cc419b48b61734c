"""Announces a consumer to the brokers: a heartbeat every 30 seconds, and at once on a new connection, because a broker
removes a member whose connection has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf
from typing import Final

from metaq.backends.rocketmq.groups.group_requests import ANSWER_S, GroupRequests
from metaq.backends.rocketmq.remoting import HEARTBEAT_S
from metaq.errors import MetaqError, likeliest_to_pass
from metaq.model import Address
from metaq.net.clock import Clock

AGAIN_S: Final = 1.0
"""Pause after heartbeats that did not reach every broker that the previous ones reached."""

FORGOTTEN_S: Final = 120.0
"""Seconds after which brokers remove a silent member."""

_LOG: Final = logging.getLogger(__name__)


class MemberHeartbeats:
    """A thread that sends heartbeats to all ``brokers()``, also slaves. ``on_lost`` is called when no broker accepts
    them.
    """

    def __init__(
        self,
        requests: GroupRequests,
        brokers: Callable[[], Collection[Address]],
        on_lost: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.until_s = inf
        """Until when brokers count this consumer as a member without another heartbeat; infinite before the
        first one.
        """
        self._requests, self._brokers, self._on_lost = requests, brokers, on_lost
        self._beating = threading.Lock()
        self._wake, self._stopped = threading.Event(), False
        self._said = ""
        self.reached: set[Address] = set()
        """The brokers that accepted the last heartbeat."""
        self._missing: set[Address] = set()
        self._thread = threading.Thread(target=self._run, name=f"metaq-heartbeat-{requests.group}", daemon=True)

    def start(self) -> None:
        """Start the thread. The caller sends the first heartbeat with ``beat``."""
        self._thread.start()

    def soon(self) -> None:
        """Have heartbeats sent at once: a connection has ended."""
        self._wake.set()

    def beat(self) -> None:
        """Send heartbeats and wait for the answers. Thread-safe.

        Raises:
            MetaqError: No broker accepted one; the reason of one of them, if possible of one that may accept it later.
        """
        with self._beating:
            sent_s = self._clock.monotonic()
            if sent_s >= self.until_s:  # this process was frozen: other members may have read its queues
                self._on_lost()
            failures = self._requests.beat(set(self._brokers()))
            reached = {address for address, failure in failures.items() if failure is None}
            failure = likeliest_to_pass(failure for failure in failures.values() if failure is not None)
            self._missing = self.reached - reached
            self.reached = reached
            if reached:
                self.until_s = sent_s + FORGOTTEN_S
            self._say(failure)
            if not reached and failure is not None:
                raise failure

    def _say(self, failure: MetaqError | None) -> None:
        text = "" if failure is None else str(failure)
        if text and text != self._said:
            group = self._requests.group
            _LOG.warning("group %s: a broker did not accept a heartbeat, trying again: %s", group, text)
        self._said = text

    def close(self) -> None:
        """End the thread, and announce to the brokers that the member has left."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * ANSWER_S)
        self._requests.leave(self.reached)
        self.reached = set()

    def _run(self) -> None:
        while not self._stopped:
            soon = bool(self._missing) or not self.reached
            self._wake.wait(AGAIN_S if soon else HEARTBEAT_S)
            self._wake.clear()
            if self._stopped:
                return
            was_reached = bool(self.reached)
            with suppress(MetaqError):  # logged already
                self.beat()
            if was_reached and not self.reached:
                self._on_lost()
