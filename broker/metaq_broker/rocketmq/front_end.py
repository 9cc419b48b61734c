"""The life cycle of the broker's front end for RocketMQ's clients: start, changes of role, stop.

A master serves clients (``BrokerServer``). A slave, or a fenced master, only keeps the port and the state
(``Standby``): clients are refused and use another broker, and it does not register with name servers, so that no route
leads to two brokers of one name. A promotion starts the server from the state as a restart would, with a state that is
older than the messages.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_mark import StateMark
from metaq_broker.log.state.state_table import FILE_NAME, LoopDriver, StateTable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.rocketmq import VIP_PORT_BELOW, RocketmqConfig
from metaq_broker.operate.control.services import GroupFigures
from metaq_broker.rocketmq.messages.partition_numbers import leave_numbers_out
from metaq_broker.rocketmq.parts import FrontEndParts, RemotingUnavailable, client_topics, forget_keys, not_listening
from metaq_broker.rocketmq.server import BrokerServer
from metaq_broker.rocketmq.standby import Standby, is_copy, make_own
from metaq_broker.rocketmq.store_host import StoreHost
from metaq_broker.serve.accounts.account_list import AccountList
from metaq_broker.serve.accounts.accounts_file import AccountsFile
from metaq_broker.serve.server import bind

_LOG: Final = logging.getLogger(__name__)

_REPEATED: Final = "groups go on where they were then, and delayed messages and transactions may be delivered again"
OLDER: Final = f"rocketmq-state is an older copy: {_REPEATED}"
PROMOTED: Final = f"rocketmq-state is what was copied of the master's before the promotion: {_REPEATED}"
"""Log line about a state that is older than the messages."""

NOT_SERVED: Final = "RocketMQ's clients are not served, the port is closed"

BEYOND_END: Final = "committed offsets were beyond the ends of their queues; the groups go on at the ends"
RENUMBERED: Final = "queues were renumbered, because their indexes are lost; the groups continue at the starts"
"""Log line about committed offsets that belong to another log."""


NO_VIP_PORT: Final = (
    "RocketMQ's Java clients before 4.5 cannot send to this broker: the port two below its own, which they use, cannot "
    "be had; choose another port, or set vipPort=false in [rocketmq] where there are no such clients"
)

FREE_PORTS_TRIED: Final = 20
"""Ports that are tried, if any port is acceptable, until the one two below is free, too."""


class ReadyToServe(NamedTuple):
    """What a member of a pair has from its start on, and serves with once it is elected: it must not find out only then
    that it cannot. Connections to the ``listeners`` are refused until then.
    """

    listeners: list[socket.socket]
    accounts: AccountsFile | None = None
    guards_metaq: bool = False

    def metaq_accounts(self) -> AccountList | None:
        """Return the accounts that MetaQ's clients need now, ``None`` if they need none."""
        return self.accounts.accounts if self.accounts is not None and self.guards_metaq else None


class FrontEnd:
    """The front end. Made by ``open``."""

    def __init__(self, parts: FrontEndParts, config: RocketmqConfig, prepared: ReadyToServe, *, serves: bool) -> None:
        self._parts, self._config, self._listeners = parts, config, prepared.listeners
        system = parts.config.system
        port = int(self._listeners[0].getsockname()[1])
        self.address = Address(config.advertised_host or system.host_name, port)
        self._store_host = StoreHost(self.address)
        self._folder = Path(system.data_path)
        self.state = _open_state(parts, self._folder / FILE_NAME)
        self.standby: Standby | None = None
        self.server: BrokerServer | None = None
        self._ending: asyncio.Task[None] | None = None
        self._accounts = prepared.accounts
        self._changing = asyncio.Lock()  # to serving, or to serving no more
        try:
            self._mark = StateMark.open(parts.files, self._folder, self.state)
            if config.metaq_accounts:
                self._open_accounts()  # a slave serves MetaQ's clients, too
            if serves:
                self.server = self._new_server()
            else:
                self.standby = Standby(parts, self.state, client_topics(parts, config, self.state))
        except BaseException:
            self.state.close()
            raise

    @classmethod
    def open(
        cls, parts: FrontEndParts, config: RocketmqConfig, *, serves: bool, prepared: ReadyToServe | None = None
    ) -> Self:
        """Bind the port, unless that was ``prepared``, and read the state (blocking; on the event loop).

        ``serves``: serve clients.

        Raises:
            RemotingUnavailable: The port is in use, the broker's name has no IP address, or a file is damaged.
            ConfigError: The file of key-value pairs cannot be used.
        """
        if prepared is None:
            prepared = ReadyToServe(_bind(parts.config.system.bind_address, config))
        with _closed_if_unusable(prepared.listeners):
            return cls(parts, config, prepared, serves=serves)

    def _open_accounts(self) -> AccountsFile | None:
        """Return the file of accounts, read on first use (blocking); ``None`` without accounts."""
        if self._config.accounts and self._accounts is None:
            self._accounts = AccountsFile(self._parts.files, Path(self._config.accounts_file))
        return self._accounts

    def metaq_accounts(self) -> AccountList | None:
        """Return the accounts that MetaQ's clients need now, ``None`` if they need none."""
        return self._accounts.accounts if self._accounts is not None and self._config.metaq_accounts else None

    def _new_server(self) -> BrokerServer:
        """Return a server for the state, which is older than the messages if it is a copy (blocking)."""
        copied = is_copy(self.state)
        if copied or self._mark.behind:
            forget_keys(self._parts.files, self._folder)
        if copied:
            leave_numbers_out(self.state, self._mark)
        accounts = self._open_accounts()
        server = BrokerServer(self._parts, self._config, self._listeners, self._store_host, self._mark, accounts)
        self._reconcile(server)
        if copied:
            make_own(self.state)
        self._mark.note()
        return server

    def _reconcile(self, server: BrokerServer) -> None:
        """Adjust state that is older or newer than the messages so that none is lost, and log it."""
        copied, behind = is_copy(self.state), self._mark.behind
        if copied or behind:
            widened = server.topics.keep_readable()
            fields = {"behind": behind, "topicsWithMoreQueues": widened}
            _LOG.warning(PROMOTED if copied else OLDER, extra={"fields": fields})
        offsets = server.groups.offsets
        for corrected, what in (
            (offsets.correct(self._start_where_renumbered), RENUMBERED),
            (offsets.correct(self._end_at_most), BEYOND_END),
        ):
            if corrected:
                topic, group, queue = corrected[0]
                fields = {"offsets": len(corrected), "topic": topic, "group": group, "queue": queue}
                _LOG.warning(what, extra={"fields": fields})

    def _start_where_renumbered(self, topic: str, queue: int, offset: int) -> int:
        log = self._parts.engine.stores.get(topic, queue)
        return offset if log is None or log.recovery.renumbered is None else log.recovery.renumbered

    def _end_at_most(self, topic: str, queue: int, offset: int) -> int:
        stores = self._parts.engine.stores
        if (log := stores.get(topic, queue)) is not None:
            return min(offset, log.durable_ordinal)
        return offset if stores.refusal(topic, queue) is not None else min(offset, 0)  # it is gone: a new one begins

    @property
    def serves(self) -> bool:
        """Whether clients are served, from ``start`` on."""
        return self.server is not None and self._ending is None

    @property
    def _part(self) -> BrokerServer | Standby:
        part = self.server or self.standby
        assert part is not None  # one of them, always
        return part

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Accept clients, and register with name servers, if this broker serves them.

        Raises:
            RemotingUnavailable: Another program listens on the port now.
        """
        self._follow_accounts()
        async with self._changing:
            if self.server is not None and self._ending is None:
                await self.server.start(tls)
            else:
                _LOG.info(NOT_SERVED, extra={"fields": {"reason": self._reason}})

    @property
    def _reason(self) -> str:
        return getattr(self._parts.engine.gate.shut_by, "reason", "")

    async def promote(self, tls: ssl.SSLContext | None) -> None:
        """Serve clients from now on, with the copied state.

        Raises:
            RemotingUnavailable: Another program listens on the port, or a file is damaged.
        """
        if self.standby is None:
            return
        try:
            self.server = self._new_server()
        except (MetaqError, OSError) as error:
            raise RemotingUnavailable(f"the front end for RocketMQ's clients: {error}") from error
        self.standby = None
        self._follow_accounts()
        await self.server.start(tls)

    def _follow_accounts(self) -> None:
        if self._accounts is not None:
            self._accounts.start()

    def register_again(self) -> None:
        """Register with name servers: the other member of a pair has given way, and may have been registered there."""
        if self.server is not None:
            self.server.register_again()

    def give_way(self) -> None:
        """Close all connections at once: the other member of a pair was elected."""
        if self.server is not None:
            self.server.give_way()

    def fence(self, patience_s: float) -> None:
        """Stop serving clients: another broker was promoted, and registers under this name."""
        if self.server is not None and self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end_serving(self.server, patience_s))

    async def _end_serving(self, server: BrokerServer, patience_s: float) -> None:
        async with self._changing:
            server.leave_name()
            await server.stop(patience_s)

    async def stop(self, patience_s: float) -> None:
        """Answer received requests, then close the connections and the state."""
        if self._ending is not None:
            await self._ending
        if self.server is not None:
            if self._parts.stream is not None:  # the other member of the pair may be elected at any time
                self.server.leave_name()
            await self.server.stop(patience_s)
        if self._accounts is not None:
            await self._accounts.stop()
        for listener in self._listeners:
            listener.close()
        self._mark.close()

    def figures(self) -> GroupFigures | None:
        """Return the figures of groups; ``None`` if no clients are served."""
        if self.server is None:
            return None
        groups, state = self.server.groups, self.state
        return GroupFigures(
            groups=len(groups.settings.all()),
            members=groups.members.count,
            state_bytes=state.size_bytes,
            state_bytes_max=state.clients_bytes_max,
        )

    def configure(self, config: BrokerConfig) -> None:
        """Go by another configuration of topics."""
        self._parts = dataclasses.replace(self._parts, config=config)
        self._part.topics.configure(config)

    def stored_topics_changed(self) -> None:
        """Topics got their first message, or lost their last partition."""
        self._part.topics.stored_topics_changed()

    def partition_deleted(self, topic: str, partition: int) -> None:
        """Reset groups to the start of a queue whose messages were deleted: others will reuse their numbers.

        Pulls that wait there are answered, so that their clients begin there, too.
        """
        if self.server is not None:
            self.server.groups.offsets.correct(lambda *at: 0 if at[:2] == (topic, partition) else at[2])
            self.server.held.wake(topic, partition)
            with suppress(StateFull):  # then they stay known, and lead nowhere
                self.server.store.numbers.forget(topic, partition)
            self.state.when_durable(lambda failure: None)  # now: a put of MetaQ's clients to the new queue may follow

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return from which offset on messages that wait are needed still, ``None`` where none wait."""
        return self._part.needed_from(topic, partition)


def prepare(files: Files, broker: BrokerConfig, config: RocketmqConfig) -> ReadyToServe:
    """Bind the port and read the accounts (blocking).

    Raises:
        RemotingUnavailable: The port is in use, or the file of accounts cannot be used.
    """
    listeners = _bind(broker.system.bind_address, config)
    with _closed_if_unusable(listeners):
        accounts = AccountsFile(files, Path(config.accounts_file)) if config.accounts else None
        return ReadyToServe(listeners, accounts, config.metaq_accounts)


@contextmanager
def _closed_if_unusable(listeners: Sequence[socket.socket]) -> Iterator[None]:
    """Close sockets if what they are for cannot be opened. Raises as ``FrontEnd.open``."""
    try:
        yield
    except (MetaqError, OSError) as error:
        for listener in listeners:
            listener.close()
        if isinstance(error, ConfigError | RemotingUnavailable):
            raise
        raise RemotingUnavailable(f"the front end for RocketMQ's clients: {error}") from error


def _open_state(parts: FrontEndParts, path: Path) -> StateTable:
    stream = parts.stream
    if stream is not None:
        stream.hand_over()
    state = StateTable.open(parts.files, path, LoopDriver(), stream=stream)
    if stream is not None:
        stream.attach(state)
    return state


def _bind(host: str, config: RocketmqConfig) -> list[socket.socket]:
    """Return sockets for the port and, if it is free, the one for old clients."""
    unsuited: list[socket.socket] = []
    try:
        while True:
            listener = _listener(host, config.port)
            if not config.old_clients_port:
                return [listener]
            port = int(listener.getsockname()[1]) - VIP_PORT_BELOW
            try:
                return [listener, bind(host, port, lingering=config.port > 0)]
            except (OSError, OverflowError) as error:
                if config.port == 0 and len(unsuited) < FREE_PORTS_TRIED:
                    unsuited.append(listener)  # it is kept, so that another one is found
                    continue
                fields = {"port": port, "reason": error}
                _LOG.warning(NO_VIP_PORT, extra={"fields": fields})
                return [listener]
    finally:
        for each in unsuited:
            each.close()


def _listener(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        raise not_listening(host, port, error) from error
