"""The only module that uses kazoo: bulk reads and writes with deadlines, errors mapped to ``metaq.errors``.

Calls are pipelined, so a thousand nodes cost a few round trips. Nothing is retried here: kazoo reconnects in the
background, and callers decide when to ask again. Thread-safe.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from metaq.errors import ZooKeeperAway, ZooKeeperChanged, ZooKeeperRefused
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.transport import refuses

PERSISTENT: Final = 0
"""Owner of a persistent node."""

CALLS_AT_ONCE: Final = 512
"""Calls in flight at a time: bounds the server's queue."""

_REFUSAL_S: Final = 0.5
"""Wait for a refused connection before kazoo takes over."""

RECONNECT_S_MAX: Final = 1.0
"""Longest pause between two attempts to connect."""

_AWAY: Final = (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    KazooTimeoutError,
)

_T = TypeVar("_T")


class SessionState(enum.Enum):
    """State of a session. After ``LOST`` all its ephemeral nodes are gone."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


_STATES: Final = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A node's text, the session that owns it (``PERSISTENT``: none), how often the text was changed, and when the node
    was made, by the server's clock.
    """

    text: str
    owner: int
    version: int = 0
    made_ms: int = 0


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no annotations
    """A connection that records when the last answered request was sent: the server heard from the client then."""

    def __init__(self, client: _Kazoo, retry: KazooRetry, logger: logging.Logger) -> None:
        super().__init__(client, retry, logger=logger)
        self._sent_s: dict[int, float] = {}  # number of a request (all pings have one) -> when it was sent

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._sent_s.clear()
        read_timeout: float
        read_timeout, connect_timeout = super()._connect(host, hostip, port)
        self.client.session_s = read_timeout * 1.5 / 1000  # kazoo waits for two thirds of what the server grants
        return read_timeout, connect_timeout

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if xid is not None:
            self._sent_s.setdefault(xid, SYSTEM_CLOCK.monotonic())
        super()._submit(request, timeout, xid)

    def _read_header(self, timeout: float) -> tuple[Any, bytes, int]:
        header, buffer, offset = super()._read_header(timeout)
        sent_s = self._sent_s.pop(header.xid, None)
        if sent_s is not None:
            self.client.heard_s = max(self.client.heard_s, sent_s)
        return header, buffer, offset


class _Kazoo(KazooClient):  # type: ignore[misc]  # kazoo has no annotations
    """A client that resets its last seen transaction id when its session must have expired.

    A server closes the connection of a client that has seen a newer transaction id than its own last one. A ZooKeeper
    that lost its data, or was restored from an older copy, would refuse this client forever. After a session timeout
    without a connection the session has expired, so the client connects with transaction id 0, and the server resumes
    the session if it knows it, or ends it.
    """

    session_s = 0.0
    """Seconds after which the server expires a silent session."""
    heard_s = 0.0
    """When the last answered request was sent, by the monotonic clock."""
    suspended_s: float | None = None
    """When the connection was lost, by the monotonic clock; ``None`` while connected."""

    _seen_zxid = 0

    @property
    def last_zxid(self) -> int:
        since_s = self.suspended_s
        if since_s is not None and SYSTEM_CLOCK.monotonic() - since_s >= self._session_timeout / 1000:
            return 0
        return self._seen_zxid

    @last_zxid.setter
    def last_zxid(self, zxid: int) -> None:
        self._seen_zxid = zxid

    def note_state(self, state: str) -> None:
        """Record when the connection was lost; a listener of kazoo's states."""
        if state == KazooState.CONNECTED:
            self.suspended_s = None
        elif self.suspended_s is None:
            self.suspended_s = SYSTEM_CLOCK.monotonic()


class ZooKeeperClient:
    """One session at ``hosts``, and a new one whenever it expires. Call ``start``, and ``close`` at the end.

    ``on_state`` and ``on_change`` are called in a thread of the client and must return at once. ``on_change`` gets the
    path of a node that was read with ``watch`` and was changed or deleted since, once for each such read.
    All methods raise ``ZooKeeperAway``, or ``ZooKeeperRefused``, for example if an access list forbids the call.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        request_timeout_s: float,
        on_state: Callable[[SessionState], None] = lambda state: None,
        on_change: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._hosts, self._request_timeout_s = hosts, request_timeout_s
        handler = SequentialThreadingHandler()
        retry = KazooRetry(-1, delay=0.05, max_delay=RECONNECT_S_MAX, sleep_func=handler.sleep_func)
        quiet = logging.getLogger(f"{__name__}.kazoo")  # it logs every attempt to connect
        quiet.setLevel(logging.ERROR)
        self._client = _Kazoo(hosts, timeout=session_timeout_s, handler=handler, connection_retry=retry, logger=quiet)
        self._client._connection = _Connection(self._client, retry.copy(), quiet)
        self._client.add_listener(self._client.note_state)
        self._client.add_listener(lambda state: on_state(_STATES[state]))
        # One function for all reads: the same node read twice is watched once.
        self._watch = lambda event: on_change(event.path) if event.path else None

    def start(self) -> None:
        """Start to connect in the background."""
        self._client.start_async()

    def start_within(self, timeout_s: float) -> None:
        """Connect.

        Raise ``ZooKeeperAway`` if that takes longer than ``timeout_s`` or every host refuses the connection.
        """
        if all(refuses(Address(host, port), _REFUSAL_S) for host, port in collect_hosts(self._hosts)[0]):
            raise ZooKeeperAway(self._hosts, "the connection was refused")
        try:
            self._client.start(timeout_s)
        except KazooTimeoutError:
            raise ZooKeeperAway(self._hosts, f"no connection within {timeout_s:g} s") from None

    def close(self) -> None:
        """End the session and with it all its ephemeral nodes. Without a connection, the session expires later."""
        with suppress(*_AWAY, WriterNotClosedException, OSError):
            self._client.stop()
        with suppress(KazooException, OSError):
            self._client.close()

    @property
    def session_id(self) -> int | None:
        """Owner of the ephemeral nodes created now; ``None`` without a session."""
        known = self._client.client_id
        return None if known is None else int(known[0])

    @property
    def alive_until_s(self) -> float:
        """Until when the session certainly lives, by the monotonic clock."""
        return self._client.heard_s + self._client.session_s

    def sync(self, path: str) -> None:
        """Have the connected server catch up with all changes below ``path`` that any server has confirmed."""
        self._each([path], self._client.sync_async, absent=())

    def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """Return the names of each node's children, sorted; ``None`` for a node that does not exist.

        ``watch``: call ``on_change`` when a child is next added to or deleted from one of the others.
        """
        watcher = self._watch if watch else None
        found = self._each(paths, lambda path: self._client.get_children_async(path, watcher), absent=(NoNodeError,))
        return [None if names is None else sorted(names) for names in found]

    def read(self, paths: Iterable[str], *, watch: bool = False) -> list[Node | None]:
        """Return each node; ``None`` if it does not exist.

        ``watch``: call ``on_change`` at the next change of the others.
        """
        watcher = self._watch if watch else None
        found = self._each(paths, lambda path: self._client.get_async(path, watcher), absent=(NoNodeError,))
        return [each and Node((each[0] or b"").decode(errors="replace"), *_of_stat(each[1])) for each in found]

    def ensure(self, paths: Iterable[str]) -> None:
        """Create the missing persistent nodes at ``paths``, and their parents, with empty texts."""
        generations: dict[int, set[str]] = {}
        for path in paths:
            for parent in _lineage(path):
                generations.setdefault(parent.count("/"), set()).add(parent)
        for depth in sorted(generations):
            self._each(
                sorted(generations[depth]), lambda path: self._client.create_async(path, b""), absent=(NodeExistsError,)
            )

    def create_ephemeral(self, texts: Mapping[str, str]) -> list[str]:
        """Create ephemeral nodes; return the paths of nodes that exist already. Parents must exist."""
        made = self._each(
            texts,
            lambda path: self._client.create_async(path, texts[path].encode(), ephemeral=True),
            (NodeExistsError,),
        )
        return [path for path, name in zip(texts, made, strict=True) if name is None]

    def replace_ephemeral(self, texts: Mapping[str, str]) -> None:
        """Delete and create nodes of this session, in one transaction each, so that watches of the parent fire."""

        def call(path: str) -> Any:
            transaction = self._client.transaction()
            transaction.delete(path)
            transaction.create(path, texts[path].encode(), ephemeral=True)
            return transaction.commit_async()

        for path, results in zip(texts, self._each(texts, call, absent=()), strict=True):
            for result in results or ():
                if isinstance(result, Exception):
                    self._raise(path, result)

    def write(self, texts: Mapping[str, str]) -> list[str]:
        """Set the texts of nodes; return the paths of nodes that do not exist."""
        done = self._each(texts, lambda path: self._client.set_async(path, texts[path].encode()), (NoNodeError,))
        return [path for path, stat in zip(texts, done, strict=True) if stat is None]

    def replace(self, texts: Mapping[str, tuple[str, int]]) -> list[str]:
        """Set the texts of nodes that still have the given version; return the paths of the others."""

        def call(path: str) -> Any:
            text, version = texts[path]
            return self._client.set_async(path, text.encode(), version)

        done = self._each(texts, call, (BadVersionError, NoNodeError))
        return [path for path, stat in zip(texts, done, strict=True) if stat is None]

    def create(self, texts: Mapping[str, str]) -> list[str]:
        """Create persistent nodes; return the paths of nodes that exist already. Parents must exist."""
        made = self._each(texts, lambda path: self._client.create_async(path, texts[path].encode()), (NodeExistsError,))
        return [path for path, name in zip(texts, made, strict=True) if name is None]

    def delete(self, paths: Collection[str]) -> list[str]:
        """Delete nodes, if they exist; return the paths of nodes that were kept because they have children."""
        kept = []
        for path, result in zip(paths, self._results(paths, self._client.delete_async), strict=True):
            if isinstance(result, NotEmptyError):
                kept.append(path)
            elif isinstance(result, Exception) and not isinstance(result, NoNodeError):
                self._raise(path, result)
        return kept

    def _each(
        self, paths: Iterable[str], call: Callable[[str], Any], absent: tuple[type[Exception], ...]
    ) -> list[Any | None]:
        """Return the result of each call, or ``None`` for an error in ``absent``."""
        named = list(paths)
        found: list[Any | None] = []
        for path, result in zip(named, self._results(named, call), strict=True):
            if isinstance(result, Exception) and not isinstance(result, absent):
                self._raise(path, result)
            found.append(None if isinstance(result, Exception) else result)
        return found

    def _results(self, paths: Collection[str], call: Callable[[str], Any]) -> list[Any]:
        """Return the result of each call, or its error."""
        results: list[Any] = []
        for some in _chunks(paths, CALLS_AT_ONCE):
            for pending in [call(path) for path in some]:
                try:
                    results.append(pending.get(timeout=self._request_timeout_s))
                except _AWAY as error:
                    self._raise("", error)
                except KazooException as error:
                    results.append(error)
        return results

    def _raise(self, path: str, error: Exception) -> None:
        if isinstance(error, KazooTimeoutError):
            raise ZooKeeperAway(self._hosts, f"no answer within {self._request_timeout_s:g} s") from error
        if isinstance(error, _AWAY):
            raise ZooKeeperAway(self._hosts, "the connection was lost") from error
        refused = ZooKeeperChanged if isinstance(error, NoNodeError) else ZooKeeperRefused
        raise refused(self._hosts, path, type(error).__name__) from error


@contextmanager
def connected(hosts: str, timeout_s: float) -> Iterator[ZooKeeperClient]:
    """Open a session for the ``with`` block; takes some ten milliseconds.

    Raises:
        ZooKeeperAway: There is no connection within ``timeout_s``.
    """
    client = ZooKeeperClient(hosts, timeout_s, timeout_s)
    client.start_within(timeout_s)
    try:
        yield client
    finally:
        client.close()


def _of_stat(stat: Any) -> tuple[int, int, int]:
    return stat.ephemeralOwner, stat.version, stat.ctime


def end_session(client: ZooKeeperClient) -> None:
    """End a client's session as if it had expired, by closing it from another connection; for tests."""
    taken = KazooClient(client._hosts, client_id=client._client.client_id)
    taken.start()
    taken.stop()
    taken.close()


def _lineage(path: str) -> Iterator[str]:
    """Return a path and its parents, without the root."""
    parts = path.strip("/").split("/")
    return ("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])
