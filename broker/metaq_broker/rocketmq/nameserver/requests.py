"""The name server's handlers: one method for each request code, on the route table and the key-value pairs.

Responses are as in RocketMQ 4.9.7, unless another form serves all its clients better; docs/name-server.md lists the
differences.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from metaq.errors import FieldError
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.registration import DataVersion, RegisterBrokerBody, read_registration
from metaq.protocols.remoting.bodies.routes import KVTable, TopicList
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.routes import (
    AddWritePermOfBroker,
    AddWritePermOfBrokerResponse,
    DeleteKVConfig,
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnunitTopicList,
    GetKVConfig,
    GetKVConfigResponse,
    GetKVListByNamespace,
    GetNamesrvConfig,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNs,
    GetTopicsByCluster,
    GetUnitTopicList,
    PutKVConfig,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
    UpdateNamesrvConfig,
    WipeWritePermOfBroker,
    WipeWritePermOfBrokerResponse,
)
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.nameserver.key_values import ORDER_TOPICS, Change, KeyValues
from metaq_broker.rocketmq.nameserver.routes import (
    BROKER_TIMEOUT_MS,
    UNIT,
    UNIT_SUBSCRIPTION,
    BrokerRegistration,
    RouteTable,
)
from metaq_broker.rocketmq.session import Call, RemotingSession

_LOG: Final = logging.getLogger(__name__)

READ_AT_ONCE_BYTES: Final = 1 << 16
"""Registrations up to this length are read on the event loop, in about a millisecond."""

WAITING_BYTES_MAX: Final = 64 << 20
"""Approximate bytes of long registrations that wait for the thread; beyond that, the next are parsed on the loop."""

STANDARD_JSON_FROM: Final = 401
"""Clients of this version (4.9.4) and above get keys in quotation marks."""

_NO_ROUTE: Final = "No topic route info in name server for the topic: {topic}; check its name, or create it"


class Settings(Protocol):
    """The settings that requests can read and change."""

    @property
    def order_messages(self) -> bool: ...

    def to_text(self) -> str:
        """Return all of them as a properties file."""

    async def change(self, text: str) -> str | None:
        """Change the settings in ``text``; return the reason of a refusal, ``None`` if the change is durable."""


class NameServerRequests:
    """``dispatcher`` is for the sessions of the port; others may have handlers there, too."""

    def __init__(
        self, routes: RouteTable, key_values: KeyValues, settings: Settings, dispatcher: Dispatcher | None = None
    ) -> None:
        self._routes, self._key_values, self._settings = routes, key_values, settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="registrations")
        self.dispatcher = Dispatcher() if dispatcher is None else dispatcher
        for code, handler in self._handlers().items():
            self.dispatcher.add([code], handler)
        self.dispatcher.when_lost(self._lost)

    def _handlers(self) -> dict[int, Callable[[Call], RemotingCommand | None]]:
        return {
            RegisterBroker.CODE: self._register,
            UnregisterBroker.CODE: self._unregister,
            QueryDataVersion.CODE: self._query_data_version,
            GetRouteInfoByTopic.CODE: self._route,
            GetBrokerClusterInfo.CODE: self._cluster_info,
            GetAllTopicListFromNameserver.CODE: self._topics,
            GetTopicsByCluster.CODE: self._topics_of_cluster,
            GetSystemTopicListFromNs.CODE: self._system_topics,
            GetUnitTopicList.CODE: self._unit_topics,
            GetHasUnitSubTopicList.CODE: self._unit_subscription_topics,
            GetHasUnitSubUnunitTopicList.CODE: self._unit_subscription_only,
            DeleteTopicInNamesrv.CODE: self._delete_topic,
            WipeWritePermOfBroker.CODE: self._wipe_write_permission,
            AddWritePermOfBroker.CODE: self._add_write_permission,
            PutKVConfig.CODE: self._put,
            GetKVConfig.CODE: self._get,
            DeleteKVConfig.CODE: self._delete,
            GetKVListByNamespace.CODE: self._namespace,
            UpdateNamesrvConfig.CODE: self._update_settings,
            GetNamesrvConfig.CODE: self._show_settings,
        }

    def close(self) -> None:
        """End the thread that reads large bodies."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- brokers

    def _register(self, call: Call) -> RemotingCommand | None:
        command = call.request
        header = RegisterBroker.from_ext({"haServerAddr": "", **command.ext})
        _check_body(command, header.body_crc32 or 0)
        if len(command.body) > READ_AT_ONCE_BYTES and self._waiting_bytes < WAITING_BYTES_MAX:
            self._waiting_bytes += len(command.body)
            self._keep(self._register_large(call, header))
            return None
        body = read_registration(command.body, bool(header.compressed), command.version)
        return self._registered(call, header, body)

    async def _register_large(self, call: Call, header: RegisterBroker) -> None:
        """Parse the body in a thread, so that others are served meanwhile. One at a time, so a broker's stay
        in order.
        """
        command, loop = call.request, asyncio.get_running_loop()
        try:
            body = await loop.run_in_executor(
                self._reader, read_registration, command.body, bool(header.compressed), command.version
            )
            if not call.session.finished:  # if its connection ended meanwhile, it would never be removed
                call.answer(self._registered(call, header, body))
        except FieldError as error:
            call.answer(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        finally:
            self._waiting_bytes -= len(command.body)

    def _registered(self, call: Call, header: RegisterBroker, body: RegisterBrokerBody) -> RemotingCommand:
        command, topics = call.request, body.topic_config_serialize_wrapper
        who = BrokerRegistration(
            header.cluster_name,
            header.broker_name,
            header.broker_addr,
            header.broker_id,
            header.ha_server_addr,
            header.heartbeat_timeout_millis or BROKER_TIMEOUT_MS,
            body.filter_server_list,
        )
        known, before = self._routes.data_version(who.cluster, who.address), self._other_address(who)
        master = self._routes.register(who, topics.topic_config_table, topics.data_version, call.session)
        if known is None:
            fields = {"broker": who.name, "id": who.broker_id, "address": who.address, "cluster": who.cluster}
            _LOG.info("broker registered", extra={"fields": fields})
        if before is not None:
            fields = {"broker": who.name, "id": who.broker_id, "address": who.address, "before": before}
            _LOG.warning(
                "two brokers have one name and id, clients reach the one that registered last", extra={"fields": fields}
            )
        response = RegisterBrokerResponse()
        if master is not None:
            found = master.registration
            response = RegisterBrokerResponse(ha_server_addr=found.ha_address, master_addr=found.address)
        order = self._key_values.namespace(ORDER_TOPICS)
        return command.reply(0, response.ext(), b"" if order is None else KVTable(table=dict(order)).to_json())

    def _other_address(self, who: BrokerRegistration) -> str | None:
        """Return the address of another live broker with this one's name and id; ``None`` if there is none."""
        address = self._routes.address_of(who.name, who.broker_id)
        is_other = address not in (None, who.address)
        return address if is_other and self._routes.data_version(who.cluster, address or "") is not None else None

    def _unregister(self, call: Call) -> RemotingCommand:
        header = UnregisterBroker.from_ext(call.request.ext)
        self._routes.unregister(
            BrokerRegistration(header.cluster_name, header.broker_name, header.broker_addr, header.broker_id),
            call.session,
        )
        _LOG.info("broker unregistered", extra={"fields": {"broker": header.broker_name, "id": header.broker_id}})
        return call.request.reply()

    def _query_data_version(self, call: Call) -> RemotingCommand:
        header = QueryDataVersion.from_ext(call.request.ext)
        theirs = DataVersion.from_json(call.request.body)
        ours = self._routes.data_version(header.cluster_name, header.broker_addr)
        if theirs == ours:
            self._routes.touch(header.cluster_name, header.broker_addr)
        response = QueryDataVersionResponse(changed=theirs != ours)
        return call.request.reply(0, response.ext(), b"" if ours is None else ours.to_json())

    def expire(self) -> None:
        """Forget the brokers that were silent for too long, and close their connections."""
        for live in self._routes.expire():
            who = live.registration
            fields = {"broker": who.name, "id": who.broker_id, "address": who.address, "timeoutMs": who.timeout_ms}
            _LOG.warning("broker removed, its registration expired", extra={"fields": fields})
            if isinstance(live.owner, RemotingSession):
                live.owner.disconnect()

    def _lost(self, session: RemotingSession) -> None:
        for who in self._routes.connection_lost(session):
            fields = {"broker": who.name, "id": who.broker_id, "address": who.address}
            _LOG.warning("broker removed, its connection ended", extra={"fields": fields})

    # ---- routes

    def _route(self, call: Call) -> RemotingCommand:
        command = call.request
        topic = command.ext.get("topic", "")
        route = self._routes.route(topic)
        if route is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=_NO_ROUTE.format(topic=topic))
        if self._settings.order_messages:
            fields = {name: getattr(route, name) for name in ("queue_datas", "broker_datas", "filter_server_table")}
            route = type(route)(**fields, order_topic_conf=self._key_values.get(ORDER_TOPICS, topic))
        standard = command.version >= STANDARD_JSON_FROM or _is_true(command.ext, "acceptStandardJsonOnly")
        return command.reply(0, body=route.to_json(bare_number_keys=not standard))

    def _cluster_info(self, call: Call) -> RemotingCommand:
        # Bare keys for all clients, as in 4.9.7: no client needs standard JSON here, and old ones cannot read it.
        return call.request.reply(0, body=self._routes.cluster_info().to_json(bare_number_keys=True))

    def _topics(self, call: Call) -> RemotingCommand:
        return _listed(call, TopicList(topic_list=self._routes.topics()))

    def _topics_of_cluster(self, call: Call) -> RemotingCommand:
        header = GetTopicsByCluster.from_ext(call.request.ext)
        return _listed(call, TopicList(topic_list=self._routes.topics_of_cluster(header.cluster)))

    def _system_topics(self, call: Call) -> RemotingCommand:
        return _listed(call, TopicList(topic_list=self._routes.names(), broker_addr=self._routes.any_address()))

    def _unit_topics(self, call: Call) -> RemotingCommand:
        return _listed(call, TopicList(topic_list=self._routes.topics_with_flags(UNIT)))

    def _unit_subscription_topics(self, call: Call) -> RemotingCommand:
        return _listed(call, TopicList(topic_list=self._routes.topics_with_flags(UNIT_SUBSCRIPTION)))

    def _unit_subscription_only(self, call: Call) -> RemotingCommand:
        return _listed(call, TopicList(topic_list=self._routes.topics_with_flags(UNIT_SUBSCRIPTION, UNIT)))

    def _delete_topic(self, call: Call) -> RemotingCommand:
        header = DeleteTopicInNamesrv.from_ext(call.request.ext)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return call.request.reply()

    def _wipe_write_permission(self, call: Call) -> RemotingCommand:
        header = WipeWritePermOfBroker.from_ext(call.request.ext)
        count = self._routes.remove_write_permission(header.broker_name)
        return call.request.reply(0, WipeWritePermOfBrokerResponse(wipe_topic_count=count).ext())

    def _add_write_permission(self, call: Call) -> RemotingCommand:
        header = AddWritePermOfBroker.from_ext(call.request.ext)
        count = self._routes.add_write_permission(header.broker_name)
        return call.request.reply(0, AddWritePermOfBrokerResponse(add_topic_count=count).ext())

    # ---- key-value pairs

    def _put(self, call: Call) -> None:
        header = PutKVConfig.from_ext(call.request.ext)
        self._key_values.change(Change(header.namespace, header.key, header.value, _answer_when_kept(call)))

    def _delete(self, call: Call) -> None:
        header = DeleteKVConfig.from_ext(call.request.ext)
        self._key_values.change(Change(header.namespace, header.key, None, _answer_when_kept(call)))

    def _get(self, call: Call) -> RemotingCommand:
        header = GetKVConfig.from_ext({"namespace": "", "key": "", **call.request.ext})
        value = self._key_values.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return call.request.reply(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return call.request.reply(0, GetKVConfigResponse(value=value).ext())

    def _namespace(self, call: Call) -> RemotingCommand:
        header = GetKVListByNamespace.from_ext(call.request.ext)
        pairs = self._key_values.namespace(header.namespace)
        if pairs is None:
            remark = f"No config item, Namespace: {header.namespace}"
            return call.request.reply(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return call.request.reply(0, body=KVTable(table=dict(pairs)).to_json())

    # ---- settings

    def _show_settings(self, call: Call) -> RemotingCommand:
        return call.request.reply(0, body=self._settings.to_text().encode())

    def _update_settings(self, call: Call) -> None:
        self._keep(self._change_settings(call))

    async def _change_settings(self, call: Call) -> None:
        refusal = await self._settings.change(call.request.body.decode("utf-8", "replace"))
        code = ResponseCode.SUCCESS if refusal is None else ResponseCode.NO_PERMISSION
        call.answer(call.request.reply(code, remark=refusal))


def _check_body(command: RemotingCommand, expected: int) -> None:
    """Check the body against ``expected``; 0 = no check."""
    if expected and zlib.crc32(command.body) & 0x7FFFFFFF != expected:
        raise FieldError("REGISTER_BROKER", "bodyCrc32", expected, "the body's checksum: crc32 not match")


def _is_true(ext: Mapping[str, str], name: str) -> bool:
    return ext.get(name, "").lower() == "true"


def _listed(call: Call, body: JsonBody) -> RemotingCommand:
    return call.request.reply(0, body=body.to_json())


def _answer_when_kept(call: Call) -> Callable[[str | None], None]:
    def done(failure: str | None) -> None:
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        call.answer(call.request.reply(code, remark=failure))

    return done
