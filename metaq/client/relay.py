"""Passes requests of other programs on to brokers, for servers of other protocols in front of them."""

from __future__ import annotations

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.relayed import Relayed, relay_get, relay_offset, relay_put, relay_stats
from metaq.discovery.base import Directory
from metaq.model import Address


class Relay:
    """Passes requests on to one of the brokers of ``directory``. Nothing is interpreted or retried.

    ``broker`` is an id; in a cluster of one broker it is that one, whatever the id. Methods raise ``ValueError`` if
    there is no such broker or a value cannot be encoded, and ``ConnectionFailed``, ``DeadlineExceeded`` or
    ``ProtocolError`` if the broker could not be asked; a put may be stored nevertheless.
    """

    def __init__(self, directory: Directory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def put(
        self, topic: str, partition: int, flag: int, body: bytes, checksum: int = -1, broker: int | None = None
    ) -> Relayed:
        """Pass on a put; ``partition`` -1 lets the broker choose, ``checksum`` -1 means that there is none."""
        with self._pool.lease(self._address(broker)) as session:
            return relay_put(session, topic, partition, flag, body, checksum)

    def get(
        self, topic: str, group: str, partition: int, offset: int, bytes_max: int, broker: int | None = None
    ) -> Relayed:
        """Pass on a get; the body of a success is a slice of the partition's bytes."""
        with self._pool.lease(self._address(broker)) as session:
            return relay_get(session, topic, group, partition, offset, bytes_max)

    def offset(self, topic: str, group: str, partition: int, offset: int, broker: int | None = None) -> Relayed:
        """Pass on an offset: the start of a segment, or the readable end."""
        with self._pool.lease(self._address(broker)) as session:
            return relay_offset(session, topic, group, partition, offset)

    def stats(self, item: str = "", broker: int | None = None) -> Relayed:
        """Pass on a ``stats``."""
        with self._pool.lease(self._address(broker)) as session:
            return relay_stats(session, item)

    def _address(self, broker: int | None) -> Address:
        brokers = self._directory.brokers()
        if len(brokers) == 1:
            return next(iter(brokers.values()))
        if broker is None or broker not in brokers:
            named = "no broker is named" if broker is None else f"there is no broker {broker}"
            raise ValueError(f"{named}; expected {', '.join(map(str, sorted(brokers))) or 'none'}")
        return brokers[broker]
