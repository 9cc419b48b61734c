"""A RocketMQ cluster for tests, in this process: its servers behave like 4.9.7, and fail on request.

::

    with ScriptedCluster() as cluster:
        cluster.create_topic("orders", queues=4)
        cluster.append("orders", Partition("broker-a", 0), [b"one tea"], tag="hot")
        cluster.broker("broker-a").refuse(PullMessage.CODE, ResponseCode.SYSTEM_BUSY, times=2)
        directory = NameServerDirectory(cluster.name_servers, pool)

Each server listens on its own port of 127.0.0.1, which does not change when it is restarted. A thread of the cluster
runs all of them. Methods may be called from the test's thread.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from metaq.errors import ProtocolError
from metaq.model import Address, Partition
from metaq.net.clock import wall_clock_ms
from metaq.protocols.remoting.acl import ACCESS_KEY, Credentials, is_signed_by
from metaq.protocols.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from metaq.protocols.remoting.codes import STANDARD_JSON_VERSION, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers.routes import (
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
)
from metaq.testing.ports import free_port
from metaq.testing.rocketmq_answers import BrokerAnswers, Endpoints, unsupported
from metaq.testing.rocketmq_store import READ, WRITE, Store, Topic
from metaq.testing.stream_server import HOST, StreamServer

if TYPE_CHECKING:
    from metaq.client.rocketmq.client import RocketMQ


CLUSTER: Final = "ScriptedCluster"

QUEUE_OF_SEND: Final = "e"
"""The field of a send that has the number of its queue."""

Tamper = Callable[[RemotingCommand, RemotingCommand], RemotingCommand]
"""(request, correct response) -> the response to send instead."""

_T = TypeVar("_T")
_Answer = Callable[[RemotingCommand, Endpoints], RemotingCommand | None]


@dataclass(slots=True)
class _Rule:
    """A scripted reaction to the next ``times`` requests of a kind; ``queue``: to sends to this queue."""

    request: int | None
    times: int
    code: int | None = None
    text: str = ""
    is_answered_first: bool = False
    queue: int | None = None

    def takes(self, command: RemotingCommand) -> bool:
        is_for_queue = self.queue is None or command.ext.get(QUEUE_OF_SEND) == str(self.queue)
        if self.times > 0 and self.request in (None, command.code) and is_for_queue:
            self.times -= 1
            return True
        return False


class _Disconnect(Exception):
    """The connection ends here."""


@dataclass
class Script:
    """How a server misbehaves. The requests that it was sent are in ``requests``, newest last."""

    latency_s: Callable[[RemotingCommand], float] | None = None
    """Seconds that a response takes; responses overtake each other where it differs."""
    tamper: Tamper | None = None
    credentials: Credentials | None = None
    """If set, only requests signed with it are answered."""
    denied: frozenset[int] = frozenset()
    """Codes of requests that are denied."""
    is_v5: bool = False
    requests: list[RemotingCommand] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)

    def refuse(
        self, request: int | None, code: int, text: str = "scripted", times: int = 1, *, queue: int | None = None
    ) -> None:
        """Answer the next ``times`` requests of a kind (``None``: any) with ``code``; they are not carried out.

        ``queue``: only sends to this queue.
        """
        self._rules.append(_Rule(request, times, code, text, queue=queue))

    def disconnect(self, request: int | None = None, times: int = 1, *, carried_out: bool = False) -> None:
        """Close the connection instead of answering; ``carried_out``: after executing the request."""
        self._rules.append(_Rule(request, times, is_answered_first=carried_out))

    def obey(self) -> None:
        """Refuse and disconnect no more."""
        self._rules.clear()

    def counts(self) -> Counter[int]:
        """How many requests of each code there were."""
        return Counter(command.code for command in self.requests)

    def respond(self, command: RemotingCommand, peer: Endpoints, answer: _Answer) -> RemotingCommand | None:
        """Return the response; raise ``_Disconnect`` to close the connection."""
        self.requests.append(command)
        if (denied := self._denied(command)) is not None:
            return denied
        rule = next((rule for rule in self._rules if rule.takes(command)), None)
        if rule is not None and rule.code is not None:
            return command.reply(rule.code, remark=rule.text)
        if rule is not None and not rule.is_answered_first:
            raise _Disconnect
        response = answer(command, peer)
        if rule is not None:
            raise _Disconnect
        return response if response is None or self.tamper is None else self.tamper(command, response)

    def _denied(self, command: RemotingCommand) -> RemotingCommand | None:
        code = ResponseCode.NO_PERMISSION if self.is_v5 else ResponseCode.SYSTEM_ERROR
        if self.credentials is not None and not is_signed_by(command, self.credentials):
            key = command.ext.get(ACCESS_KEY)
            is_known = key == self.credentials.access_key
            reason = "Check signature failed" if is_known else "No accessKey is configured"
            return command.reply(code, remark=f"org.apache.rocketmq.acl.common.AclException: {reason} for {key}")
        if command.code in self.denied:
            return command.reply(code, remark="AclException: No default permission for the resource")
        return None


class _Server(StreamServer):
    """One listening socket and its connections; everything in it runs in the cluster's loop."""

    def __init__(self, script: Script, answer: _Answer, tls: ssl.SSLContext | None = None, broker_id: int = 0) -> None:
        super().__init__(self._talk, tls)
        self.script, self._answer, self._broker_id = script, answer, broker_id

    @property
    def address(self) -> Address:
        return Address(HOST, self.port)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        host, port = writer.get_extra_info("peername")[:2]
        peer = Endpoints((host, port), self.port, self._broker_id)
        try:
            while chunk := await reader.read(1 << 18):
                for command in decoder.receive(chunk):
                    self._handle(command, peer, writer)
                await writer.drain()
        except (_Disconnect, ProtocolError):
            pass
        finally:
            writer.transport.abort()

    def _handle(self, command: RemotingCommand, peer: Endpoints, writer: asyncio.StreamWriter) -> None:
        response = self.script.respond(command, peer, self._answer)
        if response is None or command.is_oneway:
            return
        delay_s = self.script.latency_s(command) if self.script.latency_s else 0.0
        frame = encode(response)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, _write, writer, frame)
        else:
            writer.write(frame)


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    if not writer.is_closing():
        writer.write(frame)


class ScriptedBroker(Script):
    """One broker: a master, and slaves that have what it has, except for the last ``answers.lag`` messages."""

    def __init__(self, name: str, slaves: Sequence[int], is_v5: bool, tls: ssl.SSLContext | None) -> None:
        super().__init__(is_v5=is_v5)
        self.name = name
        self.store = Store(HOST, wall_clock_ms)
        self.answers = BrokerAnswers(self.store, CLUSTER, is_v5)
        self.servers = {id_: _Server(self, self.answers.answer, tls, id_) for id_ in (0, *slaves)}

    def address(self, broker_id: int = 0) -> Address:
        """Where the master or a slave listens."""
        return self.servers[broker_id].address


class ScriptedCluster:
    """``brokers`` are names, or names with the ids of slaves; ``name_server_count`` is at least 1."""

    def __init__(
        self,
        brokers: Iterable[str] | Mapping[str, Sequence[int]] = ("broker-a",),
        *,
        name_server_count: int = 1,
        is_v5: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        slaves = dict(brokers) if isinstance(brokers, Mapping) else dict.fromkeys(brokers, ())
        self._brokers = {name: ScriptedBroker(name, ids, is_v5, tls) for name, ids in slaves.items()}
        self.name_server = Script(is_v5=is_v5)
        """The script of all name servers."""
        self._name_servers = [_Server(self.name_server, self._route_answer, tls) for _ in range(name_server_count)]
        self._hidden: set[str] = set()
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rocketmq-test-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for server in self._servers():
            self._run(server.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers():
            self._run(server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def name_servers(self) -> tuple[Address, ...]:
        """Where the name servers listen."""
        return tuple(server.address for server in self._name_servers)

    def client(self, **options: Any) -> RocketMQ:
        """Return a client of the cluster with ``options`` of ``RocketMQ``, for a ``with`` block."""
        from metaq.client.rocketmq.client import RocketMQ

        return RocketMQ(";".join(map(str, self.name_servers)), **options)

    def broker(self, name: str = "broker-a") -> ScriptedBroker:
        """Return the broker of that name, to set its script."""
        return self._brokers[name]

    def create_topic(self, topic: str, queues: int = 1, *, broker: str | None = None, perm: int = READ | WRITE) -> None:
        """Create a topic at one broker or at all; an existing topic gets this number of queues."""

        def create() -> None:
            for each in [self._brokers[broker]] if broker else self._brokers.values():
                each.store.topics[topic] = Topic(queues, queues, perm)

        self._do(create)

    def append(
        self,
        topic: str,
        queue: Partition,
        bodies: Iterable[bytes],
        *,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        store_ms: int | None = None,
        reconsume_times: int = 0,
    ) -> int:
        """Store messages in a queue, as if they had been sent one by one; return the offset of the first."""
        common = {**(properties or {}), **({"TAGS": tag} if tag else {})}
        broker = self._brokers[queue.broker_name]

        def append() -> int:
            now_ms = broker.store.clock_ms()
            messages = [(body, common, 0) for body in bodies]
            return broker.store.append(
                topic,
                queue.index,
                messages,
                port=broker.servers[0].port,
                born_ms=now_ms,
                born=(HOST, 1),
                store_ms=store_ms,
                reconsume_times=reconsume_times,
            )[0]

        return self._do(append)

    def remove_below(self, topic: str, queue: Partition, offset: int) -> None:
        """Forget the messages of a queue below an offset, as retention does."""
        store = self._brokers[queue.broker_name].store
        self._do(lambda: store.queue(topic, queue.index).remove_below(offset))

    def stop_broker(self, name: str = "broker-a", broker_id: int = 0, *, is_in_route: bool = False) -> None:
        """Stop a master or slave; its address leaves the route unless ``is_in_route``."""
        server = self._brokers[name].servers[broker_id]
        self._run(server.stop())
        if is_in_route:
            self._hidden.discard(f"{name}/{broker_id}")
        else:
            self._hidden.add(f"{name}/{broker_id}")

    def start_broker(self, name: str = "broker-a", broker_id: int = 0) -> None:
        """Restart it at its address."""
        self._run(self._brokers[name].servers[broker_id].start())
        self._hidden.discard(f"{name}/{broker_id}")

    def move_broker(self, name: str = "broker-a", broker_id: int = 0) -> None:
        """End a master or slave, and start it at another address."""
        server = self._brokers[name].servers[broker_id]
        self._run(server.stop())
        server.port = free_port()
        self._run(server.start())

    def stop_name_server(self, index: int = 0) -> None:
        """End a name server."""
        self._run(self._name_servers[index].stop())

    def start_name_server(self, index: int = 0) -> None:
        """Restart it at its address."""
        self._run(self._name_servers[index].start())

    def _route_answer(self, command: RemotingCommand, _: Endpoints) -> RemotingCommand | None:
        match command.code:
            case GetRouteInfoByTopic.CODE:
                return self._route(command)
            case GetBrokerClusterInfo.CODE:
                info = ClusterInfo(
                    broker_addr_table={row.broker_name: row for row in self._broker_rows()},
                    cluster_addr_table={CLUSTER: tuple(self._brokers)},
                )
                return command.reply(body=info.to_json(bare_number_keys=True))
            case GetAllTopicListFromNameserver.CODE:
                names = {name for broker in self._brokers.values() for name in broker.store.topics}
                return command.reply(body=TopicList(topic_list=tuple(sorted(names))).to_json())
            case DeleteTopicInNamesrv.CODE:
                return command.reply()
            case _:
                return unsupported(command) if self.name_server.is_v5 else None

    def _route(self, command: RemotingCommand) -> RemotingCommand:
        topic = command.ext.get("topic", "")
        rows = [row for row in self._broker_rows() if topic in self._brokers[row.broker_name].store.topics]
        if not rows:
            text = f"No topic route info in name server for the topic: {topic}"
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=text)
        queues = tuple(
            QueueData(
                broker_name=row.broker_name,
                read_queue_nums=settings.read_queues,
                write_queue_nums=settings.write_queues,
                perm=settings.perm,
            )
            for row in rows
            for settings in [self._brokers[row.broker_name].store.topics[topic]]
        )
        is_bare = command.version < STANDARD_JSON_VERSION and command.ext.get("acceptStandardJsonOnly") != "true"
        route = TopicRouteData(queue_datas=queues, broker_datas=tuple(rows))
        return command.reply(body=route.to_json(bare_number_keys=is_bare))

    def _broker_rows(self) -> list[BrokerData]:
        """The brokers that have an address in the route."""
        rows = []
        for name, broker in self._brokers.items():
            shown = {id_: str(server.address) for id_, server in broker.servers.items()}
            shown = {id_: address for id_, address in shown.items() if f"{name}/{id_}" not in self._hidden}
            if shown:
                rows.append(BrokerData(broker_name=name, cluster=CLUSTER, broker_addrs=shown))
        return rows

    def _servers(self) -> list[_Server]:
        brokers = [server for broker in self._brokers.values() for server in broker.servers.values()]
        return [*self._name_servers, *brokers]

    def _do(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` in the loop, while no request is being processed."""

        async def run() -> _T:
            return work()

        return self._run(run())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)
