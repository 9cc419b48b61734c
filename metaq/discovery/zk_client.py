"""The only door to ZooKeeper: questions and changes in bulk, every one with a deadline, its errors in our words.

Calls are sent all together and answered in order, so a thousand nodes cost a few round trips. Nothing here is retried:
the connection heals itself in the background, and who asks knows best when to ask again. Thread-safe.
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
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from metaq.errors import ZooKeeperAway, ZooKeeperChanged, ZooKeeperRefused
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.transport import refuses

PERSISTENT: Final = 0
"""Owner of a node that belongs to no session."""

CALLS_AT_ONCE: Final = 512
"""Calls that are under way at the same time: bounds what the server has to queue."""

_REFUSAL_S: Final = 0.5
"""How long a refusal is waited for before kazoo is left to find out."""

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
    """How a client stands with ZooKeeper. After ``LOST`` all its ephemeral nodes are gone."""

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
    """A node's text, and the session that it ends with (``PERSISTENT``: none)."""

    text: str
    owner: int


class _Kazoo(KazooClient):  # type: ignore[misc]  # kazoo has no annotations
    """A client that gives up what it has seen when its session must be over.

    A server whose last transaction is older than the last one that a client has seen closes the connection, so that
    nobody goes back in time. A ZooKeeper that lost its data, or was restored from an older copy, would refuse this
    client for ever. After a session timeout without a connection there is nothing left to go back from: the client
    connects as one that has seen nothing, and the server resumes the session if it knows it, or ends it.
    """

    suspended_s: float | None = None
    """Since when there is no connection, by the monotonic clock; ``None`` while there is one."""

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
        """Listen to the states: when the connection was lost counts, until there is one again."""
        if state == KazooState.CONNECTED:
            self.suspended_s = None
        elif self.suspended_s is None:
            self.suspended_s = SYSTEM_CLOCK.monotonic()


class ZooKeeperClient:
    """One session at ``hosts``, and a new one whenever it expires. ``start`` it, ``close`` it.

    ``on_state`` is called in a thread of the client and must return at once; so is ``on_change``, with the path of a
    node that was read with ``watch`` when it is changed or deleted, once for each such read.
    All methods raise ``ZooKeeperAway``, or ``ZooKeeperRefused`` for example where an access list forbids something.
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
        quiet = logging.getLogger(f"{__name__}.kazoo")  # it has a line for every attempt to connect
        quiet.setLevel(logging.ERROR)
        self._client = _Kazoo(hosts, timeout=session_timeout_s, handler=handler, connection_retry=retry, logger=quiet)
        self._client.add_listener(self._client.note_state)
        self._client.add_listener(lambda state: on_state(_STATES[state]))
        # One function for all reads: the same node read twice is watched once.
        self._watch = lambda event: on_change(event.path) if event.path else None

    def start(self) -> None:
        """Begin to connect, in the background."""
        self._client.start_async()

    def start_within(self, timeout_s: float) -> None:
        """Connect; when that takes longer than ``timeout_s``, or every host refuses, raise ``ZooKeeperAway``."""
        if all(refuses(Address(host, port), _REFUSAL_S) for host, port in collect_hosts(self._hosts)[0]):
            raise ZooKeeperAway(self._hosts, "the connection was refused")
        try:
            self._client.start(timeout_s)
        except KazooTimeoutError:
            raise ZooKeeperAway(self._hosts, f"no connection within {timeout_s:g} s") from None

    def close(self) -> None:
        """End the session, and with it all its ephemeral nodes; without a connection, it ends by itself later."""
        with suppress(*_AWAY, WriterNotClosedException, OSError):
            self._client.stop()
        with suppress(KazooException, OSError):
            self._client.close()

    @property
    def session_id(self) -> int | None:
        """The owner of the ephemeral nodes that are made now; ``None`` without a session."""
        known = self._client.client_id
        return None if known is None else int(known[0])

    def children(self, paths: Iterable[str]) -> list[list[str] | None]:
        """The names of each node's children, sorted; ``None`` where there is no such node."""
        found = self._each(paths, self._client.get_children_async, absent=(NoNodeError,))
        return [None if names is None else sorted(names) for names in found]

    def read(self, paths: Iterable[str], *, watch: bool = False) -> list[Node | None]:
        """Each node; ``None`` where there is none. ``watch``: hear of the next change of those that are there."""
        watcher = self._watch if watch else None
        found = self._each(paths, lambda path: self._client.get_async(path, watcher), absent=(NoNodeError,))
        return [each and Node((each[0] or b"").decode(errors="replace"), each[1].ephemeralOwner) for each in found]

    def ensure(self, paths: Iterable[str]) -> None:
        """Have persistent nodes at all of ``paths`` and above; those that are missing get no text."""
        generations: dict[int, set[str]] = {}
        for path in paths:
            for parent in _lineage(path):
                generations.setdefault(parent.count("/"), set()).add(parent)
        for depth in sorted(generations):
            self._each(
                sorted(generations[depth]), lambda path: self._client.create_async(path, b""), absent=(NodeExistsError,)
            )

    def create_ephemeral(self, texts: Mapping[str, str]) -> list[str]:
        """Make nodes that end with this session; return the paths where there is a node already. Parents must exist."""
        made = self._each(
            texts,
            lambda path: self._client.create_async(path, texts[path].encode(), ephemeral=True),
            (NodeExistsError,),
        )
        return [path for path, name in zip(texts, made, strict=True) if name is None]

    def replace_ephemeral(self, texts: Mapping[str, str]) -> None:
        """Make nodes of this session anew, in one step each, so that who watches the parent hears of it."""

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
        """Change the texts of nodes; return the paths where there is none."""
        done = self._each(texts, lambda path: self._client.set_async(path, texts[path].encode()), (NoNodeError,))
        return [path for path, stat in zip(texts, done, strict=True) if stat is None]

    def delete(self, paths: Collection[str]) -> list[str]:
        """Delete nodes; it is fine if they are gone. Return the paths that have children, and stay."""
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
        """The result of each call, ``None`` for one of the errors in ``absent``."""
        named = list(paths)
        found: list[Any | None] = []
        for path, result in zip(named, self._results(named, call), strict=True):
            if isinstance(result, Exception) and not isinstance(result, absent):
                self._raise(path, result)
            found.append(None if isinstance(result, Exception) else result)
        return found

    def _results(self, paths: Collection[str], call: Callable[[str], Any]) -> list[Any]:
        """The result of each call, or its error."""
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
    """A session for the ``with`` block, for a few questions: some ten milliseconds, and nothing stays behind.

    Raises:
        ZooKeeperAway: There is no connection within ``timeout_s``.
    """
    client = ZooKeeperClient(hosts, timeout_s, timeout_s)
    client.start_within(timeout_s)
    try:
        yield client
    finally:
        client.close()


def _lineage(path: str) -> Iterator[str]:
    """A path and all above it, without the top."""
    parts = path.strip("/").split("/")
    return ("/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _chunks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])
