"""What a process keeps of the servers: one pool of connections for each account, and what name servers said."""

from __future__ import annotations

import functools

from metaq.backends.rocketmq.pool import SessionPool
from metaq.discovery.name_server import NameServerDirectory
from metaq.model import Address
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.acl import Credentials
from metaq_spark.backends.rocketmq.options import ServerOptions


@functools.cache
def pool_of(timeouts: Timeouts, tls: TlsSettings | None, credentials: Credentials | None) -> SessionPool:
    """The pool of this process for connections with these deadlines, secured if ``tls`` is given."""
    if tls is None:
        return SessionPool(timeouts, credentials=credentials)
    return SessionPool(timeouts, TlsTransport(tls), credentials=credentials)


@functools.cache
def _directory(servers: tuple[Address, ...], namespace: str | None, pool: SessionPool) -> NameServerDirectory:
    return NameServerDirectory(servers, pool, namespace=namespace)


def connections_of(options: ServerOptions) -> tuple[SessionPool, NameServerDirectory]:
    """The pool and the directory that ``options`` lead to; the same ones each time in a process.

    Spark makes new readers and writers all the time; what they know stays.
    """
    pool = pool_of(options.timeouts, options.tls, options.credentials)
    return pool, _directory(options.name_servers, options.namespace, pool)
