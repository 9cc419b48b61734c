"""Registers this broker and its topics with the configured name servers and the one in this process.

It registers at the start, every ``registerNameServerPeriod``, and at once after each change of a topic; the creation of
a topic is answered when the name servers know it (``when_registered``). A name server removes a broker whose connection
ends, so one connection to each is kept open; when it ends, or a registration failed, the next one follows soon.

Source: docs/remoting-protocol.md, "Registration".
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from metaq import ports
from metaq.errors import ConnectionFailed, FieldError, MetaqError
from metaq.formats.checksum import CHECKSUM_MASK
from metaq.model import Address
from metaq.net.duplex import RemotingTls
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigBody,
    TopicConfigs,
    write_registration,
)
from metaq.protocols.remoting.codes import VERSION, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.routes import RegisterBroker, UnregisterBroker
from metaq_broker.background import begin_work
from metaq_broker.rocketmq.name_server_link import NameServerLink
from metaq_broker.rocketmq.nameserver.routes import BrokerRegistration, RouteTable

_LOG: Final = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
"""For one name server to answer."""

WAIT_S: Final = 2.0
"""Longest wait of a request until the name servers know its topic. RocketMQ's clients wait 3 s for a response."""

MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The registering broker: ``address`` is its address for clients, ``metaq`` for MetaQ's protocol."""

    cluster: str
    name: str
    address: Address
    metaq: MetaQBroker

    def registration(self) -> BrokerRegistration:
        """Return the registration for the name server in this process."""
        announced = (self.metaq.announcement(),)
        return BrokerRegistration(self.cluster, self.name, str(self.address), MASTER_ID, filter_servers=announced)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Returns the current topics: all, one (``None`` if unknown), and the version of all."""

    all: Callable[[], TopicConfigs]
    one: Callable[[str], TopicConfigBody | None]
    version: Callable[[], DataVersion]


class NameServerRegistration:
    """``routes`` are of the name server in this process."""

    def __init__(
        self,
        who: BrokerIdentity,
        topics: TopicSource,
        routes: RouteTable,
        name_servers: tuple[Address, ...],
        interval_s: float,
        tls: RemotingTls | None = None,
    ) -> None:
        self._who, self._routes = who, routes
        self._topics, self._topic, self._version = topics.all, topics.one, topics.version
        self._name_servers, self._interval_s = name_servers, interval_s
        self._links = {
            address: NameServerLink(address, partial(self._register, address), interval_s) for address in name_servers
        }
        self._client = RemotingClient(tls=tls) if name_servers else None
        if self._client is not None:
            self._client.when_ended(self._link_ended)
        self._thread = ThreadPoolExecutor(max(1, len(name_servers)), thread_name_prefix="name-server-registration")
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._is_replaced = False
        routes.reserve(who.name, self)

    def start(self) -> None:
        """Register with the name server in this process now, and with the others from now on."""
        self._register_here()
        self._loop = asyncio.get_running_loop()
        name = "registration with name servers"
        self._tasks = [begin_work(each.run(), name) for each in self._links.values()]
        self._tasks.append(begin_work(self._stay_registered_here(), name))

    def register_again(self) -> None:
        """Register everything: another broker of this name, which has given way, may have been registered meanwhile."""
        for link in self._links.values():
            link.connection_ended()

    def give_way(self) -> None:
        """Register nowhere any more, and unregister nowhere: another broker registers under this name."""
        self._is_replaced = True
        for task in self._tasks:
            task.cancel()

    def topic_changed(self, topic: str | None) -> None:
        """Register a changed topic; the name server in this process knows it at once. ``None``: any may have
        changed.
        """
        if self._loop is None:
            return
        if topic is None:
            self._register_here()
        else:
            self._register_one_here(topic)
        for link in self._links.values():
            link.change(topic)

    def when_registered(self, call: Callable[[], None]) -> None:
        """Call back when the name servers have all changes made so far; at once if they do, within ``WAIT_S`` at most.

        Name servers that did not answer last time are not waited for.
        """
        if self._loop is None or self._stopping:
            call()
            return
        left = 0

        def known() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                timer.cancel()
                call()

        def over() -> None:
            nonlocal left
            left = 0
            call()

        left = sum(link.when_known(known) for link in self._links.values())
        if left == 0:
            call()
        else:
            timer = self._loop.call_later(WAIT_S, over)

    async def stop(self) -> None:
        """Unregister everywhere, unless another broker has this one's name."""
        if not self._tasks:
            return
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for link in self._links.values():
            link.release()
        who = self._who
        self._routes.unregister(who.registration(), self)
        header = UnregisterBroker(
            broker_name=who.name, broker_addr=str(who.address), cluster_name=who.cluster, broker_id=MASTER_ID
        )
        if not self._is_replaced:  # name servers would remove the other broker, which has the same name and id
            await asyncio.gather(*(self._ask(each, to_request(header)) for each in self._name_servers))
        if self._client is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._client.close)
        self._thread.shutdown(wait=False)

    def _link_ended(self, address: Address) -> None:
        """A connection has ended, possibly because this broker stops: its name server has removed the broker."""
        if self._loop is not None and not self._stopping:
            self._loop.call_soon_threadsafe(self._links[address].connection_ended)

    def _register_here(self) -> None:
        topics = self._topics()
        self._forget_removed(topics)
        self._register_in_routes(topics.topic_config_table, topics.data_version)

    def _register_one_here(self, topic: str) -> None:
        """Register one topic with the name server in this process: there may be thousands, and as many changes."""
        config = self._topic(topic)
        if config is None:
            self._routes.delete_topic_of(self._who.name, topic)
            return
        self._register_in_routes({topic: config}, self._version())

    def _register_in_routes(self, topics: Mapping[str, TopicConfigBody], version: DataVersion) -> None:
        try:
            self._routes.register(self._who.registration(), topics, version, self)
        except FieldError as error:  # others have filled the tables, which are limited; the next attempt is in 30 s
            _LOG.error("not registered with the name server of this process", extra={"fields": {"reason": error}})

    def _forget_removed(self, topics: TopicConfigs) -> None:
        for topic in self._routes.topics_of_broker(self._who.name) - topics.topic_config_table.keys():
            self._routes.delete_topic_of(self._who.name, topic)

    async def _stay_registered_here(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self._register_here()  # it is alive

    async def _register(self, address: Address, topics: Collection[str] | None, doubts: int) -> str | None:
        """Register topics, or all, with a name server; see ``name_server_link.Register``."""
        if topics is None:
            configs = self._topics()
        else:
            found = {topic: config for topic in topics if (config := self._topic(topic)) is not None}
            configs = TopicConfigs(topic_config_table=found, data_version=self._version())
            if not found:
                return None  # name servers keep the topics that a registration leaves out
        version = replace(configs.data_version, counter=configs.data_version.counter + doubts)
        return await self._ask(address, self._request(replace(configs, data_version=version)))

    def _request(self, configs: TopicConfigs) -> RemotingCommand:
        who = self._who
        announced = (who.metaq.announcement(),)
        topics = RegisterBrokerBody(topic_config_serialize_wrapper=configs, filter_server_list=announced)
        body = write_registration(topics, compressed=False, version=VERSION)
        header = RegisterBroker(
            broker_name=who.name,
            broker_addr=str(who.address),
            cluster_name=who.cluster,
            ha_server_addr=str(who.address),
            broker_id=MASTER_ID,
            compressed=False,
            body_crc32=zlib.crc32(body) & CHECKSUM_MASK,
        )
        return to_request(header, body)

    async def _ask(self, address: Address, request: RemotingCommand) -> str | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, address, request)

    def _call(self, address: Address, request: RemotingCommand) -> str | None:
        """Send a request to one name server (blocking); return the error."""
        assert self._client is not None
        try:
            response = self._client.call(address, request, TIMEOUT_S)
        except ConnectionFailed as error:
            return f"{error.action} failed: {error.reason}; check the address, and that a name server runs there"
        except MetaqError as error:
            return str(error)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            usual = f"whose port is {ports.NAME_SERVER} unless it is configured otherwise"
            return f"a broker is there, not a name server, {usual}"
        return None if response.code == ResponseCode.SUCCESS else f"code {response.code}: {response.remark}"
