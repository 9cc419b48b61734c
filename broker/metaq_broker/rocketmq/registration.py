"""Tells name servers about this broker and its topics: those that are configured, and the one in the same process.

At the start, every ``registerNameServerPeriod``, and soon after each change of a topic. A name server forgets a broker
whose connection ends, so one connection to each is kept; when it ends, or a name server did not take a registration,
the next one follows soon.

Source: docs/remoting-protocol.md, "Registration".
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from metaq.errors import FieldError, MetaqError
from metaq.formats.checksum import CHECKSUM_MASK
from metaq.model import Address
from metaq.net.duplex import RemotingTls
from metaq.net.remoting_client import ClientSettings, RemotingClient
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigs,
    write_registration,
)
from metaq.protocols.remoting.codes import VERSION, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.routes import RegisterBroker, UnregisterBroker
from metaq_broker.nameserver.routes import Registration, RouteTable

_LOG: Final = logging.getLogger(__name__)

TOGETHER_S: Final = 0.05
"""Changes of topics in so short a time are registered together."""

SHARE: Final = 5
"""Between two registrations pass so many times the time that one takes, at least: it grows with the topics."""

TIMEOUT_S: Final = 3.0
"""For one name server to answer."""

AGAIN_S: Final = 1.0
"""Pause before the next registration after one that failed; it doubles, up to the usual period."""

MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who registers: ``address`` is where clients reach it, ``metaq`` where it serves MetaQ's protocol."""

    cluster: str
    name: str
    address: Address
    metaq: MetaQBroker

    def registration(self) -> Registration:
        """Return the registration for the name server in this process."""
        announced = (self.metaq.announcement(),)
        return Registration(self.cluster, self.name, str(self.address), MASTER_ID, filter_servers=announced)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Gives the topics of this moment: all, one (``None``: it is not known), and the version of all."""

    all: Callable[[], TopicConfigs]
    one: Callable[[str], TopicConfig | None]
    version: Callable[[], DataVersion]


class NameServerRegistration:
    """See the module. ``routes`` are of the name server in this process."""

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
        settings = ClientSettings(on_ended=self._link_ended)
        self._client = RemotingClient(tls=tls, settings=settings) if name_servers else None
        self._thread = ThreadPoolExecutor(max(1, len(name_servers)), thread_name_prefix="name-server-registration")
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._reachable: dict[Address, bool] = {}
        routes.reserve(who.name, self)

    def start(self) -> None:
        """Register with the name server in this process now, and with the others from now on."""
        self._register_here()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="registration with name servers")

    def topic_changed(self, topic: str | None) -> None:
        """Register again soon; the name server in this process knows it at once. ``None``: any may have changed."""
        if self._task is None:
            return
        if topic is None:
            self._register_here()
        else:
            self._register_one_here(topic)
        self._changed.set()

    async def stop(self) -> None:
        """Unregister everywhere."""
        if self._task is None:
            return
        self._stopping = True
        self._task.cancel()
        await asyncio.wait([self._task])
        who = self._who
        self._routes.unregister(who.registration(), self)
        header = UnregisterBroker(
            broker_name=who.name, broker_addr=str(who.address), cluster_name=who.cluster, broker_id=MASTER_ID
        )
        await self._send(to_request(header))
        if self._client is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._client.close)
        self._thread.shutdown(wait=False)

    def _link_ended(self, address: Address) -> None:
        """A connection has ended, also because this broker stops: its name server has forgotten the broker."""
        if self._loop is not None and not self._stopping:
            self._loop.call_soon_threadsafe(self._changed.set)

    def _register_here(self) -> None:
        topics = self._topics()
        self._forget_removed(topics)
        self._register_in_routes(topics.topic_config_table, topics.data_version)

    def _register_one_here(self, topic: str) -> None:
        """Tell the name server in this process of one topic: there may be thousands, and as many changes."""
        config = self._topic(topic)
        if config is None:
            self._routes.delete_topic_of(self._who.name, topic)
            return
        self._register_in_routes({topic: config}, self._version())

    def _register_in_routes(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
        try:
            self._routes.register(self._who.registration(), topics, version, self)
        except FieldError as error:  # others have filled the tables, which are limited; the next attempt is in 30 s
            _LOG.error("not registered with the name server of this process", extra={"fields": {"reason": error}})

    def _forget_removed(self, topics: TopicConfigs) -> None:
        for topic in self._routes.topics_of_broker(self._who.name) - topics.topic_config_table.keys():
            self._routes.delete_topic_of(self._who.name, topic)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_here = loop.time() + self._interval_s
        again_s = AGAIN_S
        while True:
            self._changed.clear()
            if loop.time() >= next_here:
                self._register_here()  # it is alive
                next_here = loop.time() + self._interval_s
            began = loop.time()
            everywhere = await self._send(self._request()) if self._name_servers else True
            took_s = loop.time() - began
            pause_s = self._interval_s if everywhere else min(again_s, self._interval_s)
            again_s = AGAIN_S if everywhere else 2 * pause_s
            try:
                async with asyncio.timeout(max(pause_s, SHARE * took_s)):  # wait_for() of Python 3.11 may lose a cancel
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(TOGETHER_S, SHARE * took_s))

    def _request(self) -> RemotingCommand:
        who = self._who
        announced = (who.metaq.announcement(),)
        topics = RegisterBrokerBody(topic_config_serialize_wrapper=self._topics(), filter_server_list=announced)
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

    async def _send(self, request: RemotingCommand) -> bool:
        """Send a request to all name servers; return whether all of them took it."""
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._thread, self._call, each, request) for each in self._name_servers]
        faults = await asyncio.gather(*calls)
        for address, fault in zip(self._name_servers, faults, strict=True):
            self._note(address, fault)
        return not any(faults)

    def _call(self, address: Address, request: RemotingCommand) -> str | None:
        """Ask one name server (blocking); return what went wrong."""
        assert self._client is not None
        try:
            response = self._client.call(address, request, TIMEOUT_S)
        except MetaqError as error:
            return str(error)
        return None if response.code == ResponseCode.SUCCESS else f"code {response.code}: {response.remark}"

    def _note(self, address: Address, fault: str | None) -> None:
        known = self._reachable.get(address)
        self._reachable[address] = fault is None
        fields = {"nameServer": address, "reason": fault}
        if fault is None and known is False:
            _LOG.info("registered with a name server again", extra={"fields": {"nameServer": address}})
        elif fault is not None and known is not False:
            _LOG.warning("not registered with a name server; trying again", extra={"fields": fields})
