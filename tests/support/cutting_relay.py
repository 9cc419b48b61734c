"""A relay between a client and a broker that stops at a chosen request: before it, or with its answer in hand."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from metaq.model import Address

_DEADLINE_S: Final = 30.0


@dataclass(frozen=True)
class Cut:
    """Where a relay stops: at the ``number``-th request that has ``word`` in it; what it holds then is ``lost``."""

    word: bytes
    lost: Literal["request", "answer"]
    number: int = 1


class CuttingRelay:
    """Listens on a free port; takes requests of one client to ``target`` one by one, up to ``cut``.

    There it keeps what it has until ``release``, then it ends all connections, and passes on what comes afterwards.
    """

    def __init__(self, target: Address, cut: Cut) -> None:
        self._target, self._cut = target, cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._seen = 0
        self.reached = threading.Event()
        """Set when it has stopped."""
        self._released = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(_DEADLINE_S)

    def release(self) -> None:
        """Lose what it has."""
        self._released.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection((self._target.host, self._target.port)) as broker:
            while True:
                ready, _, _ = select.select([client, broker], [], [], _DEADLINE_S)
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
        assert self._released.wait(_DEADLINE_S)
