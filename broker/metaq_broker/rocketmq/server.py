"""The front end for RocketMQ's clients, put together: one port that is name server and broker in one.

``app`` creates it from the broker's parts (engine, files, clock), opens it before clients connect, starts and stops it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from metaq.model import Address
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.bodies.registration import TopicConfigBody
from metaq.protocols.remoting.channel import ChannelLimits
from metaq_broker.background import begin_work
from metaq_broker.log.engine.topics import Topics
from metaq_broker.log.retention.policy import RetentionPolicy
from metaq_broker.log.state.state_mark import StateMark
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.rocketmq import ROCKETMQ_KEYS, RocketmqConfig
from metaq_broker.rocketmq.access import Access
from metaq_broker.rocketmq.administration.account_requests import AccountRequests
from metaq_broker.rocketmq.administration.activity import Activity
from metaq_broker.rocketmq.administration.administration import (
    AdministrationRequests,
    data_version,
    is_listed,
    topic_config,
    topic_configs,
)
from metaq_broker.rocketmq.administration.figure_sources import FigureSources
from metaq_broker.rocketmq.administration.group_administration import GroupAdministrationRequests
from metaq_broker.rocketmq.administration.inspection import Inspected, InspectionRequests
from metaq_broker.rocketmq.administration.running_figures import RunningFigures
from metaq_broker.rocketmq.bundled import BundledBroker
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.client_questions import ClientQuestions
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.member_requests import MemberRequests
from metaq_broker.rocketmq.groups.members import Members
from metaq_broker.rocketmq.groups.offset_requests import OffsetRequests
from metaq_broker.rocketmq.groups.queue_locks import QueueLocks
from metaq_broker.rocketmq.groups.replies import Replies
from metaq_broker.rocketmq.groups.unused_groups import UnusedGroups
from metaq_broker.rocketmq.kept_key_values import KeptKeyValues
from metaq_broker.rocketmq.messages.message_store import MessageStore
from metaq_broker.rocketmq.messages.partition_numbers import PartitionNumbers
from metaq_broker.rocketmq.nameserver.requests import NameServerRequests
from metaq_broker.rocketmq.nameserver.routes import RouteTable
from metaq_broker.rocketmq.parts import (
    FrontEndParts,
    client_topics,
    lookups,
    not_listening,
    offset_of,
    waiting_parts,
)
from metaq_broker.rocketmq.pulls.filters import filter_checker
from metaq_broker.rocketmq.pulls.frame_pulls import FramePulls
from metaq_broker.rocketmq.pulls.pulls import GroupState, Pulls
from metaq_broker.rocketmq.pulls.waiting_pulls import WaitingPulls
from metaq_broker.rocketmq.registration import BrokerIdentity, NameServerRegistration, TopicSource
from metaq_broker.rocketmq.sends.sends import Sends
from metaq_broker.rocketmq.session import RemotingLimits, RemotingServer
from metaq_broker.rocketmq.store_host import StoreHost
from metaq_broker.rocketmq.system_topics import GROUPS
from metaq_broker.serve.accounts.accounts_file import AccountsFile
from metaq_broker.serve.server import Server
from metaq_broker.serve.session import ConnectionCounts

_LOG: Final = logging.getLogger(__name__)

KEY_VALUES_NAME: Final = "rocketmq-kvconfig.json"
"""A file in the data folder, of earlier versions."""

SCAN_S: Final = 5.0
"""Between two looks for members and brokers that were silent for too long."""

FIXED_SETTINGS: Final = {
    "filterServerNums": "0",
    "slaveReadEnable": "false",
    "traceOn": "true",
}
"""Settings of RocketMQ that this broker does not have, as they are in effect here; tools expect them."""

OWN_REQUESTS: Final = ChannelLimits(256, 4096)
"""Limits on the broker's own requests and oneways to one client."""


class _FixedSettings:
    """The settings of the name server in this process, from ``[rocketmq]``; read-only."""

    order_messages = True

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def to_text(self) -> str:
        return self._text()

    async def change(self, text: str) -> str | None:
        return "this name server's settings are changed in the broker's configuration file only"


class BrokerServer:
    """It listens on the sockets ``listeners``; ``store_host`` is where clients reach it."""

    def __init__(
        self,
        parts: FrontEndParts,
        config: RocketmqConfig,
        listeners: list[socket.socket],
        store_host: StoreHost,
        mark: StateMark,
        accounts: AccountsFile | None,
    ) -> None:
        """Read the state that ``mark`` belongs to (blocking; on the event loop).

        Raises:
            MetaqError, OSError: A file is damaged, or cannot be used.
        """
        self._parts, self._config, self._listeners = parts, config, listeners
        self._mark, state = mark, mark.table
        self._store_host, self.address = store_host, store_host.address
        system = parts.config.system
        self._metaq = MetaQBroker(system.broker_id, Address(system.host_name, parts.engine.port))
        engine, clock = parts.engine, parts.clock
        self.topics = client_topics(parts, config, state)
        numbers = PartitionNumbers(state, mark)
        self.store = MessageStore(engine, numbers, store_host.packed, config.message_bytes_max)
        self.groups = self._group_state(state)
        self.locks = QueueLocks(clock.monotonic, config)
        self.dispatcher = Dispatcher()
        access = Access(accounts, engine)
        self.dispatcher.access = access
        self.held = WaitingPulls(self.store, config.held_pulls_max, config.held_pulls_per_connection_max)
        self.pulls = Pulls(self.store, self.topics, self.groups, config, self.held)
        self.sends = Sends(self.store, self.topics, config)
        self.waiting = waiting_parts(
            self.store, state, self.topics, self.groups, engine, clock, config, access.may_send
        )
        data = Path(parts.config.system.data_path)
        self.lookups = lookups(self.store, engine, parts.files, data) if config.index_keys else None
        self.connection_counts = ConnectionCounts()
        self.routes = RouteTable(lambda: int(clock.since_boot() * 1000))
        self._key_values = KeptKeyValues(state, parts.files, data / KEY_VALUES_NAME)
        self._key_values.open()
        self._name_server = NameServerRequests(
            self.routes, self._key_values, _FixedSettings(self._settings_text), self.dispatcher
        )
        self._figures = self._figure_sources()
        figures = self._figures
        self._running = RunningFigures(figures.totals, figures.moment, clock.monotonic, clock.now_ms, figures.limits())
        self._activity = Activity(figures.counts, figures.one, clock.monotonic)
        self.waiting.retries.when_taken_back = self.pulls.figures.groups.sent_back
        self._identity = BrokerIdentity(config.cluster_name, config.broker_name, self.address, self._metaq)
        self._add_handlers()
        AccountRequests(accounts, self._identity).mount(self.dispatcher)
        self._registration = self._new_registration()
        self.topics.when_changed(self._registration.topic_changed)
        self.topics.announce = self._registration.when_registered
        self._server: Server | None = None
        self._remoting: RemotingServer | None = None
        self._scan: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None
        self._stopped = False

    def _group_state(self, state: StateTable) -> GroupState:
        """Return the state of groups; unused ones are removed when there are too many."""
        clock, limits = self._parts.clock, self._config
        groups = Groups(state, limits, create_unknown=limits.auto_create_groups, built_in=GROUPS)
        known = GroupState(groups, Members(clock.monotonic, limits), GroupOffsets(state, limits))
        UnusedGroups(groups, known.members, known.offsets, self.topics, clock.monotonic)
        return known

    def _figure_sources(self) -> FigureSources:
        return FigureSources(
            *(self._parts.engine, self._parts.files, self.store, self.pulls.figures, self._config),
            requests=lambda: 0 if self._remoting is None else self._remoting.requests,
            held=lambda: self.held.held,
            connections=lambda: self.connection_counts.connections,
            delays=lambda: self.waiting.delays.progress,
        )

    def _new_registration(self) -> NameServerRegistration:
        config = self._config
        interval_s = config.registration_interval_ms / 1000
        return NameServerRegistration(
            self._identity, topic_source(self.topics), self.routes, config.name_servers, interval_s
        )

    def _add_handlers(self) -> None:
        dispatcher, config, groups = self.dispatcher, self._config, self.groups
        BundledBroker(self._metaq).mount(dispatcher)
        self.sends.add_to(dispatcher)
        self.pulls.add_to(dispatcher)
        FramePulls(self.store, self.pulls).add_to(dispatcher)
        for interceptor in self.waiting.interceptors:
            self.sends.intercept(interceptor)
        self.waiting.mount(dispatcher)
        if self.lookups is not None:
            self.lookups.mount(dispatcher)
        parts, check = self._parts, filter_checker(config.has_conditions)
        OffsetRequests(self.store, groups.offsets, groups.settings, self.topics, parts.when_current).mount(dispatcher)
        MemberRequests(groups.members, groups.settings, self.locks, self.topics, check).mount(dispatcher)
        ClientQuestions(
            config.broker_name, groups.settings, groups.members, groups.offsets, self.topics, self.store
        ).mount(dispatcher)
        Replies(
            groups.members,
            self.topics,
            self.store,
            self._parts.clock.now_ms,
            config.broker_name,
            self.sends.checks,
            keeps=config.keeps_replies,
        ).mount(dispatcher)
        AdministrationRequests(
            config.broker_name,
            self.topics,
            self.store,
            groups.offsets,
            self._parts.delete_messages,
            self._running.table,
            self._settings,
        ).mount(dispatcher)
        group_requests = GroupAdministrationRequests(
            config.broker_name,
            groups.settings,
            groups.offsets,
            groups.members,
            self.topics,
            self.store,
            lambda: self.waiting.delays.positions,
        )
        group_requests.mount(dispatcher)
        inspected = Inspected(
            str(self.address), self._activity, self._figures.log_end, parts.slave, parts.retire, parts.clock.now_ms
        )
        InspectionRequests(inspected, group_requests, groups.members, self.topics, self.store).mount(dispatcher)

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Accept clients, and register with name servers.

        Raises:
            RemotingUnavailable: Another program listens on the port now.
        """
        config = self._config
        if config.tls_mode == "disabled":
            tls = None
        limits = RemotingLimits(
            config.frame_bytes_max, config.requests_max, OWN_REQUESTS, request_bytes_max=config.buffered_bytes_max
        )
        self._remoting = RemotingServer(self.dispatcher, limits)
        self._registration.start()
        if self.lookups is not None:
            self.lookups.start()
        self.waiting.start()
        self._server = Server(
            self._remoting.session,
            config,
            self.connection_counts,
            lambda: self._parts.engine.stores.partition_count,
            tls,
            tls_optional=config.tls_mode == "permissive",
        )
        try:
            await self._server.start(*self._listeners)
        except OSError as error:
            raise not_listening(self.address.host, self.address.port, error) from error
        self._schedule_scan()
        follow = self._store_host.follow(self.store.move_to)
        self._following = begin_work(follow, "address of the broker's name")

    def register_again(self) -> None:
        """Register with name servers: a broker of this name that has given way may have been registered there."""
        self._registration.register_again()

    def leave_name(self) -> None:
        """Register and unregister no more: another broker registers under this name."""
        self._registration.give_way()

    def give_way(self) -> None:
        """Close all connections at once: another broker registers under this name."""
        self.leave_name()
        if self._server is not None:
            self._server.abort()

    async def stop(self, patience_s: float) -> None:
        """Answer received requests, then close the connections and the state."""
        if self._stopped:
            return
        self._stopped = True
        if self._scan is not None:
            self._scan.cancel()
        if self._following is not None:
            self._following.cancel()
        await self._registration.stop()
        self.held.stop()
        if self._remoting is not None:
            self._remoting.stop()
        if self._server is not None:
            await self._server.stop(patience_s)
        self.waiting.stop()
        if self.lookups is not None:
            await self.lookups.stop()
        self._name_server.close()
        await self._key_values.close()
        for listener in self._listeners:
            listener.close()

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Return from which offset on messages that wait are needed still, ``None`` where none wait."""
        ordinal = self.waiting.needed_from(topic, partition)
        return None if ordinal is None else offset_of(self._parts.engine.stores.get(topic, partition), ordinal)

    def configure(self, config: BrokerConfig) -> None:
        """Go by another configuration of topics."""
        self.topics.configure(config)

    def _schedule_scan(self) -> None:
        self._scan = asyncio.get_running_loop().call_later(SCAN_S, self._look_for_silent)

    def _look_for_silent(self) -> None:
        self._schedule_scan()
        self._running.sample()
        self._activity.sample()
        self._mark.note_sometimes(self._parts.clock.monotonic())
        self.groups.members.expire()
        self.locks.expire()
        self._name_server.expire()

    # ---- figures for administrators

    def _settings(self) -> Mapping[str, str]:
        """Return the settings as RocketMQ's keys and values; secrets are not among them."""
        config, system = self._config, self._parts.config.system
        texts: dict[type, Callable[[object], str]] = {bool: lambda value: str(value).lower()}
        shown = {key.name: getattr(config, key.attribute) for key in ROCKETMQ_KEYS}
        return {
            **{name: texts.get(type(value), str)(value) for name, value in shown.items() if _is_plain(value)},
            "brokerIP1": self.address.host,
            "listenPort": str(self.address.port),
            "brokerClusterName": config.cluster_name,
            "namesrvAddr": ";".join(map(str, config.name_servers)),
            "flushDiskType": "SYNC_FLUSH" if config.wait_for_disk else "ASYNC_FLUSH",
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER" if self._parts.slave() is None else "SYNC_MASTER",
            "fileReservedTime": str(RetentionPolicy.parse(system.delete_policy).age_ms_max // 3_600_000),
            "messageDelayLevel": " ".join(f"{seconds}s" for seconds in config.delay_levels_s),
            "useTLS": texts[bool](bool(system.tls_cert_file) and config.tls_mode != "disabled"),
            **FIXED_SETTINGS,
        }

    def _settings_text(self) -> str:
        return "".join(f"{name}={value}\n" for name, value in sorted(self._settings().items()))


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | str)


def topic_source(topics: Topics) -> TopicSource:
    """Return the topics in the form for registrations."""

    def one(topic: str) -> TopicConfigBody | None:
        settings = topics.settings(topic)
        return topic_config(topic, settings) if settings is not None and is_listed(topics, topic) else None

    return TopicSource(lambda: topic_configs(topics), one, lambda: data_version(topics))
