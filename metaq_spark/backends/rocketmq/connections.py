"""A process's connections to servers: one pool for each account, and one directory for each list of name servers."""

from __future__ import annotations

import functools

from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Address
from metaq.net.reach import Reach
from metaq.protocols.remoting.acl import Credentials
from metaq_spark.backends.rocketmq.options import ServerOptions


@functools.cache
def pool_of(reach: Reach, credentials: Credentials | None) -> SessionPool:
    """Return this process's pool of connections with these settings, in the name of an account."""
    return SessionPool(reach.timeouts, reach.transport(), credentials=credentials)


@functools.cache
def _directory(servers: tuple[Address, ...], namespace: str | None, pool: SessionPool) -> NameServerDirectory:
    return NameServerDirectory(servers, pool, namespace=namespace)


def connections_of(options: ServerOptions) -> tuple[SessionPool, NameServerDirectory]:
    """Return the pool and the directory for ``options``; the same objects each time in a process.

    They outlive Spark's readers and writers.
    """
    pool = pool_of(options.reach, options.credentials)
    return pool, _directory(options.name_servers, options.namespace, pool)
