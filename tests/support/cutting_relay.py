"""A relay between a client and a broker that stops at a chosen request: before it, or with its answer in hand."""

from __future__ import annotations

import select
import socket
import threading
from dataclasses import dataclass
from typing import Literal

from listening import DEADLINE_S, Listener

from metaq.model import Address


@dataclass(frozen=True)
class Cut:
    """Where a relay stops: at the ``number``-th request that has ``word`` in it; what it holds then is ``lost``."""

    word: bytes
    lost: Literal["request", "answer"]
    number: int = 1


class CuttingRelay(Listener):
    """Listens on a free port; takes requests of one client to ``target`` one by one, up to ``cut``.

    There it keeps what it has until ``release``, then it ends all connections, and passes on what comes afterwards.
    """

    def __init__(self, target: Address, cut: Cut) -> None:
        self._target, self._cut, self._seen = target, cut, 0
        self.reached = threading.Event()
        """Set when it has stopped."""
        self._released = threading.Event()
        super().__init__(self._relay)

    def end_connections(self) -> None:
        """Lose what it has, and end everything."""
        self.release()
        super().end_connections()

    def release(self) -> None:
        """Lose what it has."""
        self._released.set()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection((self._target.host, self._target.port)) as broker:
            while True:
                ready, _, _ = select.select([client, broker], [], [], DEADLINE_S)
                for side in ready:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    if side is broker:
                        client.sendall(data)
                    elif self._is_cut(data):
                        self._stop(broker, data)
                        return
                    else:
                        broker.sendall(data)

    def _is_cut(self, request: bytes) -> bool:
        if self._cut.word not in request or self.reached.is_set():
            return False
        self._seen += 1
        return self._seen == self._cut.number

    def _stop(self, broker: socket.socket, request: bytes) -> None:
        if self._cut.lost == "answer":
            broker.sendall(request)
            assert broker.recv(1 << 16), "the broker answers"
        self.reached.set()
        assert self._released.wait(DEADLINE_S)
