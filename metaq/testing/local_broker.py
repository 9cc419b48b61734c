"""A broker on this machine for tests, as a process or in memory: its address, its clients, start and stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from metaq.model import Address

if TYPE_CHECKING:
    from types import TracebackType

    from metaq.client.async_metaq import AsyncMetaQ
    from metaq.client.metaq import MetaQ


class LocalBroker(ABC):
    """A broker of MetaQ on a port of 127.0.0.1 that it keeps. Accepts every topic; ``restart`` loses no message."""

    def __init__(self) -> None:
        self._clients: list[MetaQ] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def address(self) -> Address:
        """Where it listens, or listened."""

    @property
    def cluster(self) -> str:
        """The cluster argument of ``MetaQ``, ``AsyncMetaQ`` and ``metaq --cluster``: ``host:port``."""
        return str(self.address)

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it runs."""

    def client(self, **options: Any) -> MetaQ:
        """Return a client with ``options`` of ``MetaQ``. ``close`` closes all open clients."""
        from metaq.client.metaq import MetaQ

        self._clients.append(MetaQ(self.cluster, **options))
        return self._clients[-1]

    def async_client(self, **options: Any) -> AsyncMetaQ:
        """Return a client for asyncio, to be used with ``async with``."""
        from metaq.client.async_metaq import AsyncMetaQ

        return AsyncMetaQ(self.cluster, **options)

    @abstractmethod
    def start(self) -> None:
        """Start the broker, unless it runs, with its previous data."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it as an operator does. Connections end, later ones are refused."""

    @abstractmethod
    def kill(self) -> None:
        """End the broker abruptly. Acknowledged messages exist after ``start``."""

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    @abstractmethod
    def clear(self) -> None:
        """Forget all topics, messages and transactions. It runs afterwards."""

    def close(self) -> None:
        """Close the clients and end the broker."""
        self.close_clients()
        self.kill()

    def close_clients(self) -> None:
        """Close all clients returned by ``client``."""
        clients, self._clients = self._clients, []
        for client in clients:
            client.close()
