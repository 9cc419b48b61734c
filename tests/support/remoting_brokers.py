"""Brokers for RocketMQ's clients without sockets: handlers on a store in memory, or on a log with waiting messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from fix_broker import system_section
from manual_loop import Steps
from metaq_broker.clock import Clock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.outcomes import NothingAt, Refusal
from metaq_broker.log.engine.stores import TopicStores
from metaq_broker.log.engine.topics import ServedTopic, Topics
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_table import LoopDriver, StateTable
from metaq_broker.log.sync.group_commit import GroupCommit
from metaq_broker.operate.config.configuration import BrokerConfig, parse
from metaq_broker.rocketmq.access import Access
from metaq_broker.rocketmq.administration.administration import AdministrationRequests
from metaq_broker.rocketmq.administration.group_administration import GroupAdministrationRequests
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.delays.waiting_parts import WaitingParts
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.client_questions import ClientQuestions
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.group_settings import Groups
from metaq_broker.rocketmq.groups.limits import DEFAULT_LIMITS, GroupLimits
from metaq_broker.rocketmq.groups.member_requests import MemberRequests
from metaq_broker.rocketmq.groups.members import ClientIdentity, Members
from metaq_broker.rocketmq.groups.offset_requests import OffsetRequests
from metaq_broker.rocketmq.groups.queue_locks import QueueLocks
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy
from metaq_broker.rocketmq.messages.message_store import MessageStore, OutgoingMessage, StoredBatch
from metaq_broker.rocketmq.messages.partition_numbers import PartitionNumbers
from metaq_broker.rocketmq.pulls.filters import ONLY_TAGS, CheckFilter
from metaq_broker.rocketmq.sends.sends import Sends
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.rocketmq.system_topics import GROUPS, built_in_topics
from metaq_broker.serve.accounts.account_list import AccountList
from metaq_broker.serve.session import Client
from metaq_broker.statistics import Statistics
from remoting_headers import send_header
from stored import QuickFiles
from waiting import until

from metaq.formats.message_id import IdWorker
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.properties import write_properties
from metaq.formats.rocketmq.records import Record, read_records
from metaq.formats.stored_records import Wanted
from metaq.formats.topic_names import GROUP_PREFIXES
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.sends import SendMessage

BROKER = "broker-a"
NO_ZOOKEEPER = "[zookeeper]\nzk.zkEnable=false\n"
CONFIG = (
    system_section(0, 4, serverPort=8123, dataPath="{data}") + NO_ZOOKEEPER + "[topic=configured]\nnumPartitions=3\n"
)


class FakeSession:
    """A connection: what the broker answered, and what it told on its own."""

    def __init__(self, peer: str = "127.0.0.1:50000") -> None:
        self.client = Client(peer)
        self.responses: list[RemotingCommand | None] = []
        self.pushed: list[RemotingCommand] = []
        self.called: list[tuple[RemotingCommand, asyncio.Future[RemotingCommand]]] = []
        self.finished = False

    def send_response(self, response: RemotingCommand | bytes | None) -> None:
        if isinstance(response, bytes):
            (response,) = FrameDecoder().receive(response)
        self.responses.append(response)

    def oneway(self, command: RemotingCommand) -> None:
        self.pushed.append(command)

    def call(self, command: RemotingCommand, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.called.append((command, future))
        return future


@dataclass
class FakeStore:
    """Queues as lists of the times at which their messages were stored; ``first`` are offsets of their first ones."""

    times: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    first: dict[tuple[str, int], int] = field(default_factory=dict)
    faults: dict[tuple[str, int], Refusal] = field(default_factory=dict)
    messages: dict[int, Record] = field(default_factory=dict)

    def min_offset(self, topic: str, queue: int) -> int:
        return self.first.get((topic, queue), 0)

    def max_offset(self, topic: str, queue: int) -> int:
        return self.min_offset(topic, queue) + len(self.times.get((topic, queue), ()))

    def fault(self, topic: str, queue: int) -> Refusal | None:
        return self.faults.get((topic, queue))

    def offset_at(self, topic: str, queue: int, time_ms: int) -> int | Refusal:
        times = self.times.get((topic, queue), [])
        return self.min_offset(topic, queue) + sum(1 for each in times if each < time_ms)

    def find(self, physical_offset: int) -> Record | Refusal:
        found = self.messages.get(physical_offset)
        return NothingAt(physical_offset) if found is None else found

    def store_time(self, topic: str, queue: int, queue_offset: int) -> int | None:
        times, at = self.times.get((topic, queue), []), queue_offset - self.min_offset(topic, queue)
        return times[at] if 0 <= at < len(times) else None


class FakeStores:
    """Which topics have partitions."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @property
    def partition_count(self) -> int:
        return sum(self.counts.values())

    @property
    def topics(self) -> Set[str]:
        return self.counts.keys()

    def has_topic(self, topic: str) -> bool:
        return topic in self.counts

    def partition_counts(self) -> dict[str, int]:
        return dict(self.counts)


class Front:
    """A broker's handlers, for one life of its process; ``restarted`` is the next one on the same file."""

    def __init__(
        self,
        root: Path,
        files: Files | None = None,
        limits: GroupLimits = DEFAULT_LIMITS,
        config: str = CONFIG,
        create_groups: bool = True,
        check_filter: CheckFilter = ONLY_TAGS,
    ) -> None:
        self.root, self.steps, self.now = root, Steps(), 1000.0
        self.table = StateTable.open(files or QuickFiles(), root / "rocketmq-state", self.steps)
        self.config: BrokerConfig = parse(config.format(data=root).encode())
        self.applied: BrokerConfig = self.config
        self.store, self.stores = FakeStore(), FakeStores()
        self.topics = Topics(
            self.table,
            self.stores,
            self.config,
            self._apply,
            lambda: 1_795_000_000_000,
            built_in_topics(BROKER, "DefaultCluster", create_topics=True),
            GROUP_PREFIXES,
        )
        self.groups = Groups(self.table, limits, create_unknown=create_groups, built_in=GROUPS)
        self.offsets = GroupOffsets(self.table, limits)
        self.members = Members(lambda: self.now, limits)
        self.locks = QueueLocks(lambda: self.now, limits)
        self.deleted: list[str] = []
        self.dispatcher = Dispatcher()
        self.requests = MemberRequests(self.members, self.groups, self.locks, self.topics, check_filter)
        self._mount()

    def _mount(self) -> None:
        self.requests.mount(self.dispatcher)
        OffsetRequests(self.store, self.offsets, self.groups, self.topics).mount(self.dispatcher)
        administration = AdministrationRequests(
            BROKER,
            self.topics,
            self.store,
            self.offsets,
            lambda topic: self.delete_messages(topic),
            lambda: {"brokerVersionDesc": "V4_9_7"},
            lambda: {"brokerName": BROKER},
        )
        administration.mount(self.dispatcher)
        ClientQuestions(BROKER, self.groups, self.members, self.offsets, self.topics, self.store).mount(self.dispatcher)
        arguments = self.groups, self.offsets, self.members, self.topics, self.store, lambda: {1: 3}
        GroupAdministrationRequests(BROKER, *arguments).mount(self.dispatcher)

    def _apply(self, config: BrokerConfig) -> None:
        self.applied = config

    async def delete_messages(self, topic: str) -> None:
        self.deleted.append(topic)
        self.stores.counts.pop(topic, None)

    # ---- asking

    def send(self, command: RemotingCommand, session: FakeSession | None = None) -> FakeSession:
        """Have a command carried out, without running the disk; its response is the session's last."""
        session = session or FakeSession()
        self.dispatcher.carry_out(Call(command, cast("RemotingSession", session)))
        return session

    def ask(
        self,
        header: Request,
        body: JsonBody | bytes = b"",
        session: FakeSession | None = None,
        version: int = 407,
        **changes: Any,
    ) -> RemotingCommand:
        """Return the response to a request, when the disk has done what it had to."""
        command = to_request(header, body if isinstance(body, bytes) else body.to_json(), opaque=7)
        return self.ask_raw(replace(command, version=version, **changes), session)

    def ask_raw(self, command: RemotingCommand, session: FakeSession | None = None) -> RemotingCommand:
        """The same with a command as it is."""
        session = session or FakeSession()
        before = len(session.responses)
        self.send(command, session)
        self.steps.run_all()
        assert len(session.responses) == before + 1, "no response, or several"
        response = session.responses[-1]
        assert response is not None
        return response

    def lose(self, session: FakeSession) -> None:
        self.dispatcher.lost(cast("RemotingSession", session))

    def restarted(self, files: Files | None = None, **changes: Any) -> Front:
        """Return what a new process finds, without the old one having ended well."""
        return Front(self.root, files, **changes)


@dataclass
class KnownAccounts:
    """The accounts in effect."""

    accounts: AccountList


class AppliedConfig:
    """The configuration that a front has applied."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @property
    def config(self) -> BrokerConfig:
        return self._front.applied


def access_to(front: Front, accounts: AccountList | None, kind: type[Access] = Access) -> Access:
    """Return what checks the requests to a front."""
    return kind(None if accounts is None else KnownAccounts(accounts), AppliedConfig(front))


def ext_of(response: RemotingCommand) -> Mapping[str, str]:
    """The fields of a response that went well."""
    assert response.code == 0, response.remark
    return response.ext


SYSTEM = system_section(5, 4, unflushInterval=1000, maxMessageSize=1000000, dataPath="{folder}") + NO_ZOOKEEPER
HERE, BORN = host_bytes("127.0.0.1", 10911), host_bytes("10.0.0.1", 999)
LEVELS = DelayLevels((40, 80, 120, 160, 200))


class SentNow:
    """What ``sends`` gives to interceptors."""

    def __init__(self, header: SendMessage, queue: int) -> None:
        self.header, self.queue = header, queue
        self.fields: dict[str, str] = {}


class WaitingBroker:
    """One life of a broker on a folder; topic ``t`` has four queues."""

    def __init__(
        self,
        folder: Path,
        stores: TopicStores,
        config: BrokerConfig,
        policy: AskPolicy,
        levels: DelayLevels,
        files: Files,
        clock: Clock,
    ) -> None:
        self.clock, self.commit, self.stores = clock, GroupCommit(), stores
        statistics = Statistics(self.clock.monotonic, lambda topic: False)
        self.engine = Engine(config, stores, self.commit, IdWorker(5), self.clock, statistics)
        self.state = StateTable.open(files, folder / "state", LoopDriver())
        self.store = MessageStore(self.engine, PartitionNumbers(self.state), HERE)
        built_in = built_in_topics("broker-a", "DefaultCluster", create_topics=True)
        self.topics = Topics(self.state, stores, config, self._apply, self.clock.now_ms, built_in)
        self.groups, self.members = Groups(self.state), Members(self.clock.monotonic)
        self.dispatcher = Dispatcher()
        self.parts = WaitingParts(
            self.store, self.state, self.topics, self.groups, self.members, self.clock, levels, policy, "broker-a"
        )
        self.parts.mount(self.dispatcher)
        self.parts.start()

    def _apply(self, config: BrokerConfig) -> None:
        self.engine.config = config

    def producer(self, group: str) -> FakeSession:
        session = FakeSession()
        self.members.producer_seen(ClientIdentity(session, f"client-{id(session)}"), group)
        return session

    def mount_sends(self) -> None:
        """Have sends of clients carried out, as the broker does where it is configured for RocketMQ's clients."""
        config = self.engine.config.rocketmq
        assert config is not None
        sends = Sends(self.store, self.topics, config)
        for each in self.parts.interceptors:
            sends.intercept(each)
        sends.add_to(self.dispatcher)

    async def send(
        self,
        body: bytes,
        properties: dict[str, str] | None = None,
        topic: str = "t",
        queue: int = 0,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
    ) -> StoredBatch | Refusal:
        """Send a message as ``sends`` does: past the interceptors, into the store."""
        text = write_properties(properties or {})
        message = OutgoingMessage(body, text.encode(), 77, BORN, 3, 0, reconsume_times)
        header = send_header(
            producer_group="producers",
            topic=topic,
            queue_id=queue,
            born_timestamp=77,
            flag=3,
            properties=text,
            max_reconsume_times=max_reconsume_times,
        )
        future: asyncio.Future[StoredBatch | Refusal] = asyncio.get_running_loop().create_future()
        self.last_sent = SentNow(header, queue)
        for each in self.parts.interceptors:
            if each.accept(self.last_sent, message, future.set_result):
                return await future
        self.store.append(topic, queue, [message], future.set_result)
        return await future

    async def stored(self, *arguments: object, **more: object) -> StoredBatch:
        outcome = await self.send(*arguments, **more)  # type: ignore[arg-type]
        assert isinstance(outcome, StoredBatch), outcome
        return outcome

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        session = FakeSession()
        self.dispatcher.carry_out(Call(command, cast("RemotingSession", session)))
        await until(lambda: bool(session.responses))
        response = session.responses[0]
        assert response is not None
        return response

    def records(self, topic: str = "t", queue: int = 0) -> list[Record]:
        batch = self.store.read(topic, queue, self.store.min_offset(topic, queue), Wanted(10_000, 1 << 30, 10_000))
        return [] if isinstance(batch, Refusal) else list(read_records(batch.records))

    def bodies(self, topic: str = "t", queue: int = 0) -> list[bytes]:
        return [each.body for each in self.records(topic, queue)]

    async def bodies_are(self, *bodies: bytes, topic: str = "t", queue: int = 0) -> None:
        """Wait until a queue has these messages."""
        with suppress(AssertionError):
            await until(lambda: len(self.bodies(topic, queue)) >= len(bodies))
        assert self.bodies(topic, queue) == list(bodies)


def play(
    folder: Path,
    scenario: Callable[[WaitingBroker], Awaitable[None]],
    policy: AskPolicy | None = None,
    levels: DelayLevels = LEVELS,
    clean: bool = True,
    more: str = "",
    files: Files | None = None,
    clock: Clock | None = None,
) -> None:
    """Run ``scenario`` on a broker; not ``clean``: it is then as after a kill. ``more`` is configuration."""

    async def run() -> None:
        config, time = parse(f"{SYSTEM.format(folder=folder)}{more}[topic=t]\n".encode()), clock or Clock()
        stores = TopicStores.open(files or Files(), time, config)
        broker = WaitingBroker(folder, stores, config, policy or AskPolicy(), levels, files or Files(), time)
        try:
            await scenario(broker)
            if clean:
                await broker.commit.drain()
        finally:
            broker.parts.stop()
            broker.commit.stop()
            broker.state.close()
            stores.close(clean=clean)

    asyncio.run(run())


WIDE = ServedTopic(8, 8)
"""Settings of a topic with eight queues."""
