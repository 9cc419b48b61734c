"""Opens the parts of a broker in order, and closes them.

Order at start: bind the port, open partitions and transactions, accept clients, print the ready line. Order at stop: no
more clients, answers to received requests, sync, the mark of a clean stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import metaq
from metaq.errors import MetaqError
from metaq.formats.message_id import IdWorker
from metaq.model import Address
from metaq_broker.background import begin_work, stop_work
from metaq_broker.clock import Clock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.maintenance import PartitionMaintenance
from metaq_broker.log.engine.steady_time import FILE_NAME as JUMPS_NAME
from metaq_broker.log.engine.steady_time import SteadyTime
from metaq_broker.log.engine.stores import EndsRecorder, TopicStores
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.run_marks import begin_run
from metaq_broker.log.partitions.log_store import LOCK_NAME, TRANSACTIONS_NAME
from metaq_broker.log.retention.retention import Retention
from metaq_broker.log.state.state_stream import StateStream
from metaq_broker.log.state.state_table import FILE_NAME as STATE_NAME
from metaq_broker.log.state.state_table import GROUPS_NAME, LoopDriver, StateTable
from metaq_broker.log.streams.member import leave_pair
from metaq_broker.log.sync.group_commit import FlushPolicy, GroupCommit
from metaq_broker.log.sync.sync_queue import OnDurable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.replication import GregorConfig, PairConfig, SamsaConfig, SlaveConfig
from metaq_broker.operate.config.sections import SystemConfig
from metaq_broker.operate.control.admin_services import AdminServices, MetricsUnavailable, address_of, bind_metrics
from metaq_broker.operate.control.reload import Reloader
from metaq_broker.operate.control.services import BrokerParts
from metaq_broker.operate.http.console_process import ConsoleProcess
from metaq_broker.operate.http.requirements import HttpUnavailable, listen
from metaq_broker.operate.monitoring.disk_guard import DiskGuard, DiskLimits
from metaq_broker.operate.monitoring.folder_watch import FolderWatch, WatchedFiles, watched_files
from metaq_broker.operate.registration.own_session import OwnSession
from metaq_broker.operate.registration.wanted import BrokerNodes, broker_nodes
from metaq_broker.replication.driver.opening import MemberParts, open_member
from metaq_broker.replication.driver.pair_replication import PairReplication
from metaq_broker.replication.local import LocalPartitions
from metaq_broker.replication.paired_commit import PairedCommit
from metaq_broker.replication.roles import Replication
from metaq_broker.rocketmq.system_topics import COPIED_LAST
from metaq_broker.serve.accounts.account_list import AccountList
from metaq_broker.serve.fair_queue import FairQueue
from metaq_broker.serve.server import Server, bind
from metaq_broker.serve.tls import server_context
from metaq_broker.start_errors import StartFailed as StartFailed
from metaq_broker.start_errors import listen_fault
from metaq_broker.statistics import Statistics
from metaq_broker.text.extensions import broker_version
from metaq_broker.text.groups.group_commands import GroupCommands
from metaq_broker.text.groups.group_state import KeptGroups
from metaq_broker.text.pair_link import PairLink
from metaq_broker.text.peer import TextPeer
from metaq_broker.text.refusals import RefusalTexts
from metaq_broker.text.session import TextServices
from metaq_broker.text.stats_report import StatsReport
from metaq_broker.text.transactions import TransactionCommands
from metaq_broker.transactions import folder
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import Durability, TransactionLimits
from metaq_broker.transactions.journal import JournalDamaged, JournalFailed
from metaq_broker.transactions.journal_stream import JournalStream
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.outcomes import TransactionRefused
from metaq_broker.transactions.partitions import EngineStore
from metaq_broker.transactions.recovery import JournalIncomplete

if TYPE_CHECKING:
    from metaq_broker.operate.registration.registration import Registration
    from metaq_broker.rocketmq.front_end import FrontEnd, ReadyToServe

_LOG: Final = logging.getLogger(__name__)

JOIN_AGAIN_S: Final = 2.0
"""Seconds between two attempts to register a promoted slave in ZooKeeper."""

STOP_PATIENCE_S: Final = 10.0
"""How long a stop waits for clients that do not read their replies."""


class Broker:
    """One broker on a running event loop: ``open``, ``serve``, ``close``."""

    def __init__(
        self,
        config: BrokerConfig,
        file: Path | None,
        stop: Callable[[], None],
        reopen: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """``file`` is the configuration's file, if it has one; ``stop`` is called when an operator stops the broker.

        ``reopen`` is called when this broker must be closed, and another one opened in its place: it was a member of a
        pair that may not go on.
        """
        self.config = config
        self._file, self._stop, self._reopen = file, stop, reopen
        self._pair = config.role if isinstance(config.role, PairConfig) else None
        self.admin: AdminServices | None = None
        self.reloader: Reloader | None = None
        self._registration: Registration | None = None
        self.rocketmq: FrontEnd | None = None
        self._prepared: ReadyToServe | None = None
        self.console: ConsoleProcess | None = None
        """The process that serves HTTP; ``None``: it is not configured."""
        self._server: Server | None = None
        self._coming: frozenset[str] = frozenset()
        self._moving: asyncio.Task[None] | None = None
        self._files, self._clock = Files(), Clock()
        paired = isinstance(config.role, SamsaConfig | PairConfig)
        make_commit = PairedCommit if paired else GroupCommit
        queue = FairQueue.of(asyncio.get_running_loop())
        self.commit = make_commit(self._flush_policy, is_client_alone=queue.has_one_client)
        self._closing = contextlib.AsyncExitStack()
        self._keeping_jumps = threading.Lock()

    async def open(self) -> None:
        """Bind the port, load the partitions and finish what a crash interrupted.

        Raises:
            StartFailed: The port is taken, a data folder is in use or cannot be used, or the journal is damaged.
            ConfigError: A file for TLS cannot be used.
        """
        self._tls = server_context(self.config.system)
        self._bind()
        self._closing.push_async_callback(self._close_admin)
        self._open_stores()
        await self._open_engine()
        self._begin_run()
        if self._pair is None:
            await self._open_transactions()
            self.engine.continue_ids(self.transactions.last_message_id)
        self._open_retention()
        if self._pair is None:
            self._open_replication()
        else:
            await self._open_pair(self._pair)
        self._open_groups()
        if self._pair is None:
            self._open_rocketmq()
        self.config = dataclasses.replace(self.config, role=self.replication.role)

    def _open_stores(self) -> None:
        try:
            self.stores = TopicStores.open(self._files, self._clock, self.config)
        except MetaqError as error:
            raise StartFailed(str(error)) from error
        self._closing.callback(self.stores.close, clean=True)
        self._closing.callback(self.commit.stop)
        self._closing.push_async_callback(self.commit.drain)

    async def _open_engine(self) -> None:
        ids = IdWorker(self.config.system.broker_id)
        self._statistics = Statistics(self._clock.monotonic, self._has_figures)
        await self._open_guard()
        self.engine = Engine(self.config, self.stores, self.commit, ids, self._clock, self._statistics, self._guard)
        self.engine.port = self.port
        self._texts = RefusalTexts(self.config.system.broker_id, self.config.system.host_name, self.port)
        self.engine.id_clock.steady = steady = self._read_jumps()
        steady.changed = self._keep_jumps
        self._expect_ids()

    def _expect_ids(self) -> None:
        """Compare the clock with the last use of the data."""
        last_used = [store.last_used_ms for store in self.stores.each_store() if store.last_used_ms is not None]
        if last_used:
            self.engine.id_clock.expect(max(last_used))

    def _read_jumps(self) -> SteadyTime:
        try:
            return SteadyTime.read(self._files, Path(self.config.system.data_path))
        except OSError as error:
            raise StartFailed(f"file {error.filename} cannot be read: {error.strerror}") from error

    def _keep_jumps(self) -> None:
        """Record that the clock has jumped, or is accepted, for the next start."""
        path, steady = Path(self.config.system.data_path) / JUMPS_NAME, self.engine.id_clock.steady

        def write() -> None:
            try:
                with self._keeping_jumps:
                    self._files.write_atomic(path, steady.content())
            except OSError as error:
                _LOG.warning("the clock's jump is not recorded", extra={"fields": {"reason": str(error)}})

        self._jumps_kept = asyncio.get_running_loop().run_in_executor(None, write)

    def _open_retention(self) -> None:
        """Start the disk guard, retention and the maintenance of partitions."""
        interval_ms = self.config.system.disk_check_interval_ms
        self._folder_watch = FolderWatch(
            self._files, self.stores, self._guard, _watched_files(self.config), interval_ms
        )
        self._closing.push_async_callback(self._folder_watch.stop)
        doubt = self.engine.id_clock.doubt
        self.retention = Retention(self._files, self._clock, self.config, self.stores, self.transactions, doubt=doubt)
        self._closing.push_async_callback(self.retention.stop)
        self.maintenance = PartitionMaintenance(
            self.engine, self.commit, self.transactions.users_of, self.retention.settle, self._when_journal_on_disk
        )

    def _open_replication(self) -> None:
        local = LocalPartitions(self.engine, self.commit, self.maintenance, self._files)
        try:
            heard = self._promoted, self._fenced, COPIED_LAST
            self.replication: Replication | PairReplication = Replication(
                self.config.role, local, self.commit, self._clock, TextPeer.connect, *heard
            )
        except MetaqError as error:
            raise StartFailed(str(error)) from error

    async def _open_pair(self, pair: PairConfig) -> None:
        """Open the streams of a member of a pair, which serves no clients before it is elected."""
        if self.config.rocketmq is not None:  # in advance: that takes seconds, which an election must not
            front_end = await asyncio.to_thread(importlib.import_module, "metaq_broker.rocketmq.front_end")
            self._prepared = prepared = front_end.prepare(self._files, self.config, self.config.rocketmq)
            for listener in prepared.listeners:
                self._closing.callback(listener.close)
            if prepared.accounts is not None:
                self._closing.push_async_callback(prepared.accounts.stop)
                prepared.accounts.start()
        folders = [Path(path) for path in self.config.data_paths()]
        calls = self._serve_elected, self._give_way
        role = PairReplication(pair, self.engine.gate, *calls, self._files, folders, self._member_follows)
        self.replication = role
        system, zookeeper = self.config.system, self.config.zookeeper.address
        parts = MemberParts(
            LocalPartitions(self.engine, self.commit, self.maintenance, self._files),
            self._clock,
            self.retention,
            [each for each in (self._journal_stream, self._state_stream) if each is not None],
            Address(system.host_name, self.port),
        )
        # Imported here: only a pair needs kazoo.
        from metaq_broker.replication.driver.zookeeper_store import ZooKeeperStore

        store = ZooKeeperStore(zookeeper.hosts, zookeeper.root, system.broker_id, pair.session_ms / 1000)
        try:
            driver, deleted = await open_member(parts, pair, store, partial(PairLink.open, system.broker_id), role)
        except (MetaqError, OSError) as error:
            raise StartFailed(str(error)) from error
        role.open(driver)
        self.maintenance.deleted = deleted
        await asyncio.to_thread(importlib.import_module, "metaq_broker.operate.registration.registration")
        self._closing.push_async_callback(self._stop_rocketmq)

    async def _stop_rocketmq(self) -> None:
        if self.rocketmq is not None:
            await self.rocketmq.stop(STOP_PATIENCE_S)

    async def _serve_elected(self) -> None:
        """Recover what the former master has left, and serve clients: this member was elected."""
        self._expect_ids()
        await self._open_transactions()
        self.engine.ids_above_stored(self.transactions.last_message_id)
        self.retention.start()
        self._open_rocketmq()
        if self.rocketmq is not None:
            await self.rocketmq.start(self._tls)
        self._moving = begin_work(self._join_zookeeper(), "join ZooKeeper")

    def _give_way(self, reason: str) -> None:
        """End all sessions without an answer, and have the broker opened again: another member may be elected."""
        if self._server is not None:
            self._server.abort()
        if self.rocketmq is not None:
            self.rocketmq.give_way()
        if self._registration is not None:
            self._registration.gives_way = True
        self._reopen(reason)

    def _member_follows(self) -> None:
        """A former master that thaws may register at name servers once more, before it learns of the election."""
        if self.rocketmq is not None:
            self.rocketmq.register_again()

    def _open_groups(self) -> None:
        """Read the consumer groups. A broker with a role has none: they are not copied to its peer."""
        self._groups: KeptGroups | None = None
        if self.config.role is not None:
            return
        path = Path(self.config.system.data_path) / GROUPS_NAME
        try:
            table = StateTable.open(self._files, path, LoopDriver())
        except (MetaqError, OSError) as error:
            raise StartFailed(f"consumer groups: {error}") from error
        self._closing.callback(table.close)
        self._groups = KeptGroups(table, self._clock.monotonic)

    def _bind(self) -> None:
        host, port = self.config.system.bind_address, self.config.system.server_port
        try:
            self._listener = bind(host, port)
        except OSError as error:
            raise StartFailed(listen_fault(host, port, error)) from error
        self._closing.callback(self._listener.close)
        self.port = int(self._listener.getsockname()[1])
        try:
            self._metrics_listener = bind_metrics(host, self.config.system.metrics_port)
        except MetricsUnavailable as error:
            raise StartFailed(str(error)) from error
        if self._metrics_listener is not None:
            self._closing.callback(self._metrics_listener.close)
        self._bind_http()

    def _bind_http(self) -> None:
        if self.config.http is None:
            return
        try:
            listener = listen(self.config.http)
        except HttpUnavailable as error:
            raise StartFailed(str(error)) from error
        self._closing.callback(listener.close)
        self.console = ConsoleProcess(self.config.http, listener, _reached_at(self.config.system, self.port))

    def _open_rocketmq(self) -> None:
        if self.config.rocketmq is None:
            return
        from metaq_broker.rocketmq.front_end import FrontEnd  # imported here: not every broker needs it
        from metaq_broker.rocketmq.parts import FrontEndParts

        parts = FrontEndParts(
            config=self.config,
            engine=self.engine,
            files=self._files,
            clock=self._clock,
            apply=self._serve_topics,
            delete_messages=self._delete_messages,
            retire=self.retention.run_now,
            slave=self.replication.synchronous_slave,
            stream=self._state_stream,
            when_current=None if self._pair is None else self.transactions.when_current,
        )
        is_elected = self._pair is not None
        self.rocketmq = front_end = FrontEnd.open(
            parts,
            self.config.rocketmq,
            serves=is_elected or self.replication.is_master,
            prepared=self._prepared,
        )
        self.retention.users.append(front_end.needed_from)
        noted = self.maintenance.deleted

        def deleted(topic: str, index: int) -> None:
            noted(topic, index)
            front_end.partition_deleted(topic, index)

        self.maintenance.deleted = deleted
        if not is_elected:
            self._closing.push_async_callback(self._stop_rocketmq)
        if self.rocketmq.standby is not None and isinstance(self.replication, Replication):
            self.replication.copy_state(self.rocketmq.standby)

    async def _delete_messages(self, topic: str) -> None:
        there = {(log.topic, log.index) for log in self.stores.logs()}
        there |= {(name, index) for name, index, _ in self.stores.refused()}
        if indexes := sorted(index for name, index in there if name == topic):
            await self.maintenance.delete(topic, indexes, force=True)

    async def _open_guard(self) -> None:
        system = self.config.system
        limits = DiskLimits(system.disk_free_bytes_min, system.disk_free_bytes_resume, system.disk_check_interval_ms)
        self._guard = DiskGuard(self._files, self._clock, limits, _written_folders(self.config))
        await self._guard.check()
        self._closing.push_async_callback(self._guard.stop)

    def _begin_run(self) -> None:
        """Begin the run in both folders, and make the transactions; in a pair, the journal is opened as a stream."""
        directory = self._transactions_folder
        store = EngineStore(self.engine)
        self._journal_stream: JournalStream | None = None
        self._state_stream: StateStream | None = None
        try:
            data_path = Path(self.config.system.data_path)
            begin_run(self._files, data_path, directory)
            if self._pair is None and leave_pair(self._files, data_path):
                fields = {"data": data_path}
                _LOG.warning("the folder of a pair's member is used without [pair]", extra={"fields": fields})
            if self._pair is not None:
                self._journal_stream = JournalStream.open(self._files, self._clock, directory)
                self._closing.callback(self._journal_stream.close)
                self._state_stream = StateStream.open(self._files, data_path / STATE_NAME)
                self._closing.callback(self._state_stream.close)
        except OSError as error:
            raise StartFailed(f"folder {directory} cannot be used: {error.strerror}: {error.filename}") from error
        except MetaqError as error:
            raise StartFailed(f"transactions in {directory}: {error}") from error
        self.transactions = transaction_manager(
            self._files, self._clock, directory, store, self.config.system, self._journal_stream
        )
        self._are_transactions_open = False
        self._closing.callback(self._close_transactions)

    def _when_journal_on_disk(self, callback: OnDurable) -> None:
        if self._are_transactions_open:
            self.transactions.when_on_disk(callback)
        else:  # a member of a pair that is not elected has no transactions
            callback(None)

    def _close_transactions(self) -> None:
        if self._are_transactions_open:
            self.transactions.close()

    @property
    def _transactions_folder(self) -> Path:
        return Path(self.config.system.data_log_path) / "transactions"

    async def _open_transactions(self) -> None:
        directory = self._transactions_folder
        try:
            self.transactions.recover_from_journal()
        except OSError as error:
            raise StartFailed(f"folder {directory} cannot be used: {error.strerror}: {error.filename}") from error
        except TransactionRefused as refused:
            reason = self._texts.plain(refused.refusal).text
            raise StartFailed(f"transactions in {directory}: {reason}") from refused
        except (MetaqError, JournalDamaged, JournalIncomplete, JournalFailed) as error:
            raise StartFailed(f"transactions in {directory}: {error}") from error
        self._are_transactions_open = True
        await self.commit.drain()  # what was committed before the crash is readable before anybody asks

    async def serve(self) -> None:
        """Accept clients, and register in ZooKeeper if it is configured.

        Raises:
            StartFailed: Another program listens on the port now, or ZooKeeper does not give the broker id.
        """
        if self._pair is None:
            await self._claim_id()
        version = broker_version(
            groups=self._groups is not None, other=None if self._pair is None else self._pair.other
        )
        counters, replication = self.transactions.counters, self.replication
        lines = replication.lines
        guard, rocketmq = self._guard, self._rocketmq_lines
        report = StatsReport(
            self.engine, counters, version, self.retention, guard, lines, self._state, rocketmq, self._member
        )
        commands = TransactionCommands(self.transactions, self._statistics, self.engine.gate, self._texts)
        accounts = self._metaq_accounts
        groups = GroupCommands(self._groups)
        services = TextServices(
            self.engine, report, commands, groups, version, self._texts, replication.receiver, accounts, self._member
        )
        self._server = server = Server(
            services.session,
            self.config.system,
            self._statistics.connection_counts,
            lambda: self.stores.partition_count,
            self._tls,
        )
        self._closing.push_async_callback(server.stop, STOP_PATIENCE_S)
        try:
            await server.start(self._listener)
        except OSError as error:
            raise StartFailed(listen_fault(self.config.system.bind_address, self.port, error)) from error
        self.stores.topics_changed = self._topics_changed
        self._guard.start()
        self._folder_watch.start()
        recorder = EndsRecorder(self.stores)
        self._closing.push_async_callback(recorder.stop)
        recorder.start()
        if self._pair is None:
            self.retention.start()
        self._closing.push_async_callback(self.replication.stop)
        self.replication.start()
        await self.replication.slave_was_tried()  # who finds this broker from now on can send
        if self.rocketmq is not None:
            await self.rocketmq.start(self._tls)
        await self._publish()
        await self._open_to_operators()
        if self.console is not None:
            self._closing.push_async_callback(self.console.stop)
            self.console.start()

    def _state(self) -> StateTable | None:
        return None if self.rocketmq is None else self.rocketmq.state

    def _metaq_accounts(self) -> AccountList | None:
        if self.rocketmq is not None:
            return self.rocketmq.metaq_accounts()
        return None if self._prepared is None else self._prepared.metaq_accounts()  # not elected yet

    @property
    def _member(self) -> PairReplication | None:
        found = getattr(self, "replication", None)  # a start may have failed before
        return found if isinstance(found, PairReplication) else None

    async def _publish(self) -> None:
        if self._registration is not None:
            self._closing.push_async_callback(self._registration.unregister)
            await self._registration.publish()
            if self.replication.fenced:  # heard in the meantime
                await self._registration.unregister()

    async def _stop_moving(self) -> None:
        await stop_work(self._moving)

    async def _claim_id(self) -> None:
        zookeeper = self.config.zookeeper
        if not zookeeper.has_address or isinstance(self.config.role, GregorConfig):
            return  # the slave of a synchronous pair is for its master alone
        if self.replication.fenced:
            return  # another broker is the master of this id
        from metaq_broker.operate.registration.registration import (  # imported here: not every broker needs it
            Registration,
            RegistrationFailed,
        )

        session = OwnSession(self._files, Path(self.config.system.data_path))
        if self._pair is not None:
            zookeeper = dataclasses.replace(zookeeper, session_timeout_ms=self._pair.session_ms)
        self._registration = Registration(zookeeper, self._wanted_nodes, session, takes_over=self._pair is not None)
        self._closing.push_async_callback(self._end_registration)
        try:
            await self._registration.claim()
        except RegistrationFailed as error:
            raise StartFailed(str(error)) from error

    def _wanted_nodes(self) -> BrokerNodes:
        address = Address(self.config.system.host_name, self.port)
        slave = self.config.role.slave_id if isinstance(self.config.role, SlaveConfig) else None
        root, stored = self.config.zookeeper.address.root, self.stores.partition_counts()
        others = self._coming | {topic for topic, _, _ in self.stores.refused()}
        return broker_nodes(root, self.engine.config, address, stored, slave, others)

    async def _open_to_operators(self) -> None:
        reloader = Reloader(self._file, lambda: self.config, self.stores, self._apply, self._clock, self._announce)
        parts = BrokerParts(
            address=Address(self.config.system.host_name, self.port),
            metrics_address=address_of(self._metrics_listener),
            engine=self.engine,
            commit=self.commit,
            maintenance=self.maintenance,
            transactions=self.transactions,
            retention=self.retention,
            guard=self._guard,
            replication=self.replication,
            registration=lambda: self._registration,
            groups=lambda: None if self.rocketmq is None else self.rocketmq.figures(),
            reloader=reloader,
            describe=lambda refusal: self._texts.plain(refusal).text,
            stop=self._stop,
        )
        self.reloader = reloader
        self.admin = AdminServices(parts, self._metrics_listener)
        self._closing.push_async_callback(self.admin.quiesce, STOP_PATIENCE_S)
        await self.admin.open()
        self.replication.follow_config(reloader)

    async def _close_admin(self) -> None:
        if self.admin is not None:
            await self.admin.close()

    async def _announce(self, config: BrokerConfig) -> None:
        """Announce the topics of ``config`` in ZooKeeper, before messages are accepted for them."""
        self._coming |= config.topics.keys()
        if self._registration is not None:
            await self._registration.announce(self._wanted_nodes())

    def _apply(self, config: BrokerConfig) -> None:
        """Apply another configuration of topics."""
        self.config = config
        self._serve_topics(config)
        if self.rocketmq is not None:
            self.rocketmq.configure(config)  # has the topics served that clients made, too
        self.commit.policies_changed()
        self.retention.update(config)
        self._guard.guard(_written_folders(config))
        self._folder_watch.watch(_watched_files(config))
        if self._registration is not None:
            self._registration.refresh()

    def _serve_topics(self, config: BrokerConfig) -> None:
        """Apply a configuration of topics to the engine."""
        self.engine.config = config

    def _topics_changed(self) -> None:
        if self.rocketmq is not None:
            self.rocketmq.stored_topics_changed()
        if self._registration is not None:
            self._registration.refresh()

    async def _promoted(self) -> None:
        """Continue as a master, whatever is configured; also in ZooKeeper and for RocketMQ's clients."""
        self._apply(dataclasses.replace(self.config, role=None))
        if self._registration is None:  # the slave of a pair was not registered at all
            self._moving = begin_work(self._join_zookeeper(), "join ZooKeeper")
        if self.rocketmq is not None:
            try:
                await self.rocketmq.promote(self._tls)
            except MetaqError as error:
                fields = {"reason": str(error)}
                _LOG.error("promoted, but RocketMQ's clients are not served; restart it", extra={"fields": fields})

    def _fenced(self) -> None:
        """Give up the master's node in ZooKeeper, and RocketMQ's clients, in favour of the promoted broker."""
        if self.rocketmq is not None:
            self.rocketmq.fence(STOP_PATIENCE_S)
        if self._registration is not None:
            leave = self._registration.unregister()
            self._moving = begin_work(leave, "leave ZooKeeper")

    async def _join_zookeeper(self) -> None:
        """Register this broker as the master, whatever its section says; try until that succeeds."""
        while True:
            try:
                await self._claim_id()
            except StartFailed as error:
                fields = {"reason": str(error)}
                _LOG.error("promoted, but not registered in ZooKeeper; trying again", extra={"fields": fields})
                await self._end_registration()
                await asyncio.sleep(JOIN_AGAIN_S)
            else:
                break
        await self._publish()

    async def _end_registration(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.end()

    def on_sighup(self) -> None:
        """Handle SIGHUP: reload the configuration, or stop if there is no file to reload."""
        if self._file is None:
            self._stop()
        elif self.reloader is None:
            _LOG.warning("not reloaded, the broker is still starting")
        else:
            self.reloader.reload_soon()

    async def close(self) -> None:
        """Answer received requests, make everything durable, and close in reverse order."""
        if (member := self._member) is not None:
            await member.stop()  # first: the other member is elected while this one still answers
        await self._stop_moving()
        await self._closing.aclose()

    @property
    def rocketmq_address(self) -> Address | None:
        """The address for RocketMQ's clients; ``None`` if they are not served."""
        return self.rocketmq.address if self.rocketmq is not None and self.rocketmq.serves else None

    def _rocketmq_lines(self) -> Iterator[str]:
        if self.config.rocketmq is not None and (address := self.rocketmq_address) is not None:
            yield f"rocketmq_port {address.port}"
            yield f"rocketmq_broker {self.config.rocketmq.broker_name}"

    def startup_summary(self) -> dict[str, object]:
        """Return the fields of the log line of a broker that is ready."""
        system = self.config.system
        return {
            "version": metaq.__version__,
            "pid": os.getpid(),
            "address": Address(system.host_name, self.port),
            "data": system.data_path,
            "broker_id": system.broker_id,
            "partitions": self.stores.partition_count,
            "prepared_transactions": len(self.transactions.prepared()),
            "metricsPort": system.metrics_port,
        }

    def _flush_policy(self, topic: str) -> FlushPolicy:
        settings = self.engine.config.topic_settings(topic)  # it has the topics that clients made, too
        return FlushPolicy(settings.unflush_threshold, settings.unflush_interval_ms)

    def _has_figures(self, topic: str) -> bool:
        # Only topics that exist: a client that asks for made-up names must not fill the memory with counters.
        settings = self.config.topics.get(topic)
        return self.stores.has_topic(topic) and self.config.system.stat if settings is None else settings.stat


def transaction_manager(
    files: Files,
    clock: Clock,
    directory: Path,
    store: EngineStore,
    system: SystemConfig,
    stream: JournalStream | None = None,
) -> TransactionManager:
    """Return the transactions of a broker with its configuration; nothing is opened yet. ``stream``: of a pair."""
    return TransactionManager(
        files,
        clock,
        directory,
        store,
        timeout_s_max=system.transaction_timeout_s_max,
        durability=Durability(system.transaction_flush),
        call_later=asyncio.get_running_loop().call_later,
        limits=TransactionLimits(open_max=system.transaction_timers_max, message_bytes_max=system.message_bytes_max),
        checkpoint=CheckpointSettings(system.checkpoints_max, system.checkpoint_interval_ms / 1000),
        check_space=store.check_space,
        stream=stream,
    )


def _reached_at(system: SystemConfig, port: int) -> Address:
    """Return where a client on this machine reaches the broker. A certificate is for the name that clients use."""
    if system.tls_cert_file:
        return Address(system.host_name, port)
    return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(system.bind_address, system.bind_address), port)


def _written_folders(config: BrokerConfig) -> list[str]:
    return [*config.data_paths(), config.system.data_log_path]


def _watched_files(config: BrokerConfig) -> WatchedFiles:
    journal_lock = f"{TRANSACTIONS_NAME}/{folder.LOCK_NAME}"
    return watched_files(config.data_paths(), LOCK_NAME, config.system.data_log_path, journal_lock)
