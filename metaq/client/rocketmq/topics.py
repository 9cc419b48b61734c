"""Administration of the topics of a RocketMQ cluster: created, changed and deleted at the masters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from metaq.backends.rocketmq.names import with_namespace
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.topics import (
    QUEUES_MAX,
    READABLE,
    WRITABLE,
    TopicConfigBody,
    create_topic,
    delete_topic,
    forget_route,
    read_topic,
    write_topic,
)
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import TopicNotFound
from metaq.model import Address

PERMISSIONS: Final = {"rw": READABLE | WRITABLE, "r": READABLE, "w": WRITABLE, "none": 0}
"""The permissions of readers and writers of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic at one broker: its queues for readers and for writers; ``permissions`` is a key of ``PERMISSIONS``."""

    broker: str
    read_queues: int
    write_queues: int
    permissions: str


class TopicAdministration:
    """Settings of topics; ``brokers`` limits a change to brokers of these names.

    Methods raise ``RequestRefused`` or ``AccessDenied`` if a broker refuses, ``NameServersAway`` if no name server
    answers, and ``ConnectionFailed`` or ``DeadlineExceeded`` with the broker that could not be asked.
    """

    def __init__(self, directory: NameServerDirectory, pool: SessionPool) -> None:
        self._directory, self._pool = directory, pool

    def create(
        self, topic: str, queues: int = 8, permissions: str = "rw", brokers: Collection[str] | None = None
    ) -> dict[str, Address]:
        """Create a topic with ``queues`` queues at each broker, or change the number of its queues; return the brokers.

        Name servers list the topic when the brokers have registered it, after a moment.

        Raises:
            ValueError: ``queues`` is not 1..1024, or ``permissions`` or a broker is unknown.
        """
        require_queues(queues)
        perm = _perm(permissions)
        masters = self._masters(brokers)
        for name, address in masters.items():
            create_topic(self._pool, name, address, self._name(topic), queues, perm)
        self._directory.invalidate()
        return masters

    def settings(self, topic: str, brokers: Collection[str] | None = None) -> list[TopicSettings]:
        """Return the topic at each broker that has it.

        Raises:
            TopicNotFound: No broker has it.
            ValueError: A broker in ``brokers`` is unknown.
        """
        return [_settings(name, config) for name, _, config in self._read(topic, brokers)]

    def alter(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permissions: str | None = None,
        brokers: Collection[str] | None = None,
    ) -> list[TopicSettings]:
        """Change the given settings at each broker that has the topic, and return the new settings. Raises as
        ``settings``.

        Messages in queues at and above ``read_queues`` stay stored but cannot be read.
        """
        for count in (read_queues, write_queues):
            if count is not None:
                require_queues(count)
        changed = []
        for name, address, config in self._read(topic, brokers):
            config = replace(
                config,
                read_queue_nums=config.read_queue_nums if read_queues is None else read_queues,
                write_queue_nums=config.write_queue_nums if write_queues is None else write_queues,
                perm=config.perm if permissions is None else _perm(permissions) | config.perm & ~_perm("rw"),
            )
            write_topic(self._pool, name, address, config)
            changed.append(_settings(name, config))
        self._directory.invalidate()
        return changed

    def delete(self, topic: str) -> dict[str, Address]:
        """Delete a topic with its messages at every broker, and its route at every name server; return the brokers."""
        masters = self._masters(None)
        for name, address in masters.items():
            delete_topic(self._pool, name, address, self._name(topic))
        for server in self._directory.servers:
            forget_route(self._pool, server, self._name(topic))
        self._directory.invalidate()
        return masters

    def _read(self, topic: str, brokers: Collection[str] | None) -> list[tuple[str, Address, TopicConfigBody]]:
        masters = self._masters(brokers)
        found = [(name, at, read_topic(self._pool, name, at, self._name(topic))) for name, at in masters.items()]
        present = [(name, address, config) for name, address, config in found if config is not None]
        if not present:
            raise TopicNotFound(topic, list(masters))
        return present

    def _masters(self, wanted: Collection[str] | None) -> dict[str, Address]:
        masters = self._directory.masters()
        if not masters:
            servers = ", ".join(map(str, self._directory.servers))
            raise ValueError(f"no broker is registered at the name servers {servers}")
        if wanted is not None and (unknown := sorted(set(wanted) - set(masters))):
            raise ValueError(f"no broker {unknown[0]!r} is registered; there are {', '.join(masters)}")
        return {name: at for name, at in masters.items() if wanted is None or name in wanted}

    def _name(self, topic: str) -> str:
        return with_namespace(topic, self._directory.namespace)


def require_queues(count: int) -> None:
    """Check a number of queues.

    Raises:
        ValueError: ``count`` is not 1..1024.
    """
    if not 1 <= count <= QUEUES_MAX:
        raise ValueError(f"{count} queues: expected 1..{QUEUES_MAX}")


def _perm(permissions: str) -> int:
    if permissions not in PERMISSIONS:
        raise ValueError(f"permissions {permissions!r}: expected {', '.join(PERMISSIONS)}")
    return PERMISSIONS[permissions]


def _settings(broker: str, config: TopicConfigBody) -> TopicSettings:
    perm = config.perm & PERMISSIONS["rw"]
    return TopicSettings(
        broker=broker,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permissions=next(name for name, bits in PERMISSIONS.items() if bits == perm),
    )
