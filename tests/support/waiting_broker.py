"""A broker's log with what the front end has for messages that wait, and requests to it, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from metaq_broker.clock import Clock
from metaq_broker.config.configuration import BrokerConfig, parse
from metaq_broker.delayed.levels import DelayLevels
from metaq_broker.engine.engine import Engine
from metaq_broker.engine.outcomes import Refusal
from metaq_broker.engine.stores import TopicStores
from metaq_broker.engine.topics import Topics, TopicSettings
from metaq_broker.frontends.remoting.dispatcher import Call, Dispatcher
from metaq_broker.frontends.remoting.message_store import MessageStore, OutgoingMessage, StoredBatch
from metaq_broker.frontends.remoting.partition_numbers import PartitionNumbers
from metaq_broker.frontends.remoting.sends import Sends
from metaq_broker.frontends.remoting.system_topics import built_in_topics
from metaq_broker.frontends.remoting.waiting_parts import WaitingParts
from metaq_broker.groups.group_settings import Groups
from metaq_broker.groups.members import ClientIdentity, Members
from metaq_broker.half_messages.half_messages import AskPolicy
from metaq_broker.monitoring.statistics import Statistics
from metaq_broker.storage.files import Files
from metaq_broker.storage.flush import GroupCommit
from metaq_broker.storage.state_table import LoopDriver, StateTable
from remoting_front import FakeSession
from remoting_headers import send_header
from waiting import until

from metaq.formats.message_id import IdWorker
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.rocketmq.properties import write_properties
from metaq.formats.rocketmq.records import Record, read_record
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.sends import SendMessage

if TYPE_CHECKING:
    from metaq_broker.frontends.remoting.session import RemotingSession

SYSTEM = (
    "[system]\nbrokerId=5\nnumPartitions=4\nunflushThreshold=0\nunflushInterval=1000\nmaxSegmentSize=1048576\n"
    "maxTransferSize=1048576\ndataPath={folder}\nmaxMessageSize=1000000\n[zookeeper]\nzk.zkEnable=false\n{more}[topic=t]\n"
)
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
        batch = self.store.read(topic, queue, self.store.min_offset(topic, queue), 10_000, 1 << 30)
        return [] if isinstance(batch, Refusal) else [read_record(each) for each in batch.records]

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
        config, time = parse(SYSTEM.format(folder=folder, more=more).encode()), clock or Clock()
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


WIDE = TopicSettings(8, 8)
"""Settings of a topic with eight queues."""
