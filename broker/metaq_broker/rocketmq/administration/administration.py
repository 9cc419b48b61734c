"""Administrative requests: topics (17, 18, 215, 21, 305, 351, 202), settings (25, 26) and figures (28).

A change is answered when it is durable, and the name servers are notified at once. Settings of the broker itself are
only shown: they are changed in its configuration file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from metaq.errors import MetaqError
from metaq.formats.topic_names import rocketmq_fault
from metaq.protocols.remoting.bodies.administration import TopicConfigList
from metaq.protocols.remoting.bodies.groups import MessageQueue
from metaq.protocols.remoting.bodies.offsets import TopicOffset, TopicStats
from metaq.protocols.remoting.bodies.registration import DataVersion, TopicConfigBody, TopicConfigs
from metaq.protocols.remoting.bodies.routes import KVTable, TopicList
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetBrokerConfig,
    GetBrokerConfigResponse,
    GetBrokerRuntimeInfo,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
    UpdateBrokerConfig,
)
from metaq_broker.log.engine.topics import ServedTopic, Topics
from metaq_broker.rocketmq.administration.topic_attributes import MESSAGE_TYPE, changed_type
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.offset_requests import QueueOffsets
from metaq_broker.rocketmq.refusals import invalid_parameter
from metaq_broker.rocketmq.session import Call
from metaq_broker.rocketmq.system_topics import INTERNAL, LISTED_WHEN_STORED
from metaq_broker.rocketmq.when_kept import NOT_SET, answer_when_kept

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""Valid filter types of topics. A Java name server refuses a broker if a topic has another one, as older versions
stored.
"""

DeleteMessages = Callable[[str], Awaitable[None]]
"""Removes the messages of a topic. Raises ``MetaqError`` with the reason if that cannot be done."""


def topic_configs(topics: Topics) -> TopicConfigs:
    """Return the topics of a broker in the form for name servers and administrators."""
    listed = ((topic, each) for topic, each in sorted(topics.all().items()) if is_listed(topics, topic))
    table = {topic: topic_config(topic, settings) for topic, settings in listed}
    return TopicConfigs(topic_config_table=table, data_version=data_version(topics))


def is_listed(topics: Topics, topic: str) -> bool:
    """Return whether a topic is visible to name servers and administrators."""
    return topic not in INTERNAL and (topic not in LISTED_WHEN_STORED or topics.has_messages(topic))


def data_version(topics: Topics) -> DataVersion:
    """Return the version, which changes with each change of a topic."""
    return DataVersion(timestamp=topics.changed_ms, counter=topics.changes)


def topic_config(topic: str, settings: ServedTopic) -> TopicConfigBody:
    """Return one topic in that form."""
    return TopicConfigBody(
        topic_name=topic,
        read_queue_nums=settings.read_queues,
        write_queue_nums=settings.write_queues,
        perm=settings.perm,
        topic_filter_type=settings.filter_type if settings.filter_type in FILTER_TYPES else FILTER_TYPES[0],
        topic_sys_flag=settings.sys_flag,
        order=settings.order,
        attributes={MESSAGE_TYPE: settings.message_type} if settings.message_type else None,
    )


class AdministrationRequests:
    """Handlers. ``figures`` returns the broker's figures, ``configuration`` its settings, both under
    RocketMQ's names.
    """

    def __init__(
        self,
        broker_name: str,
        topics: Topics,
        store: QueueOffsets,
        offsets: GroupOffsets,
        delete_messages: DeleteMessages,
        figures: Callable[[], Mapping[str, str]],
        configuration: Callable[[], Mapping[str, str]],
    ) -> None:
        self._broker_name = broker_name
        self._topics, self._store, self._offsets = topics, store, offsets
        self._delete_messages, self._figures, self._configuration = delete_messages, figures, configuration
        self._tasks: set[asyncio.Task[None]] = set()

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.add([UpdateAndCreateTopic.CODE], self._update_topic)
        dispatcher.add([UpdateAndCreateTopicList.CODE], self._update_topics)
        dispatcher.add([DeleteTopicInBroker.CODE], self._delete_topic)
        dispatcher.add([GetAllTopicConfig.CODE], self._all_topics)
        dispatcher.add([GetSystemTopicListFromBroker.CODE], self._system_topics)
        dispatcher.add([GetTopicConfig.CODE], self._one_topic)
        dispatcher.add([GetTopicStatsInfo.CODE], self._topic_stats)
        dispatcher.add([GetBrokerConfig.CODE], self._show_configuration)
        dispatcher.add([UpdateBrokerConfig.CODE], self._change_configuration)
        dispatcher.add([GetBrokerRuntimeInfo.CODE], self._show_figures)

    # ---- topics

    def _update_topic(self, call: Call) -> RemotingCommand | None:
        command, asked = call.request, UpdateAndCreateTopic.from_ext(call.request.ext)
        if (fault := rocketmq_fault(asked.topic)) is not None:
            return command.reply(invalid_parameter(command), remark=fault)
        if (fault := _filter_fault(asked.topic_filter_type)) is not None:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=fault)
        known = self._topics.settings(asked.topic)
        try:
            message_type = changed_type("" if known is None else known.message_type, asked.attributes or "")
        except ValueError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"topic {asked.topic}: {error}")
        settings = ServedTopic(
            asked.read_queue_nums,
            asked.write_queue_nums,
            asked.perm,
            asked.order,
            asked.topic_filter_type,
            asked.topic_sys_flag or 0,
            message_type,
        )
        self._topics.create(asked.topic, settings, answer_when_kept(call, NOT_SET))
        return None

    def _update_topics(self, call: Call) -> RemotingCommand | None:
        """Create or change topics: all, or with a wrong one among them none."""
        command, configs = call.request, TopicConfigList.from_json(call.request.body).topic_config_list
        for each in configs:
            fault = rocketmq_fault(each.topic_name) or _filter_fault(each.topic_filter_type)
            if fault is not None:
                remark = f"topic {each.topic_name}: {fault}; nothing was changed"
                return command.reply(invalid_parameter(command), remark=remark)
        try:
            made = {each.topic_name: self._topic_settings(each) for each in configs}
        except ValueError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{error}; nothing was changed")
        if not made:
            return command.reply()
        self._topics.check_all(made)
        *others, last = made.items()
        with self._topics.together():
            for topic, settings in others:
                self._topics.create(topic, settings)
            self._topics.create(*last, answer_when_kept(call, NOT_SET))
        return None

    def _topic_settings(self, config: TopicConfigBody) -> ServedTopic:
        known = self._topics.settings(config.topic_name)
        changes = ",".join(f"{name}={value}" if value else name for name, value in (config.attributes or {}).items())
        return ServedTopic(
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.order,
            config.topic_filter_type,
            config.topic_sys_flag,
            changed_type("" if known is None else known.message_type, changes),
        )

    def _delete_topic(self, call: Call) -> RemotingCommand | None:
        command, topic = call.request, DeleteTopicInBroker.from_ext(call.request.ext).topic
        if (fault := rocketmq_fault(topic)) is not None:
            return command.reply(invalid_parameter(command), remark=fault)
        self._topics.check_deletable(topic)
        task = asyncio.get_running_loop().create_task(self._delete(call, topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _delete(self, call: Call, topic: str) -> None:
        """Delete the messages, then the settings. A message stored in between is deleted, too."""
        try:
            await self._delete_messages(topic)
            self._offsets.forget_topic(topic)
            self._topics.delete(topic)
            await self._delete_messages(topic)
            self._topics.delete(topic, answer_when_kept(call))
        except (MetaqError, OSError) as error:
            call.answer(call.request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))

    def _all_topics(self, call: Call) -> RemotingCommand:
        return call.request.reply(body=topic_configs(self._topics).to_json())

    def _system_topics(self, call: Call) -> RemotingCommand:
        names = tuple(topic for topic in sorted(self._topics.all()) if self._topics.is_built_in(topic))
        return call.request.reply(body=TopicList(topic_list=names).to_json())

    def _one_topic(self, call: Call) -> RemotingCommand:
        topic = GetTopicConfig.from_ext(call.request.ext).topic
        settings = self._topics.settings(topic)
        if settings is None:
            return _no_topic(call, topic)
        return call.request.reply(body=topic_config(topic, settings).to_json())

    def _topic_stats(self, call: Call) -> RemotingCommand:
        topic = GetTopicStatsInfo.from_ext(call.request.ext).topic
        settings = self._topics.settings(topic)
        if settings is None:
            return _no_topic(call, topic)
        table = {
            MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue): self._queue_stats(topic, queue)
            for queue in range(settings.write_queues)
        }
        return call.request.reply(body=TopicStats(offset_table=table).to_json(bare_number_keys=True))

    def _queue_stats(self, topic: str, queue: int) -> TopicOffset:
        first, end = self._store.min_offset(topic, queue), self._store.max_offset(topic, queue)
        last_ms = self._store.store_time(topic, queue, end - 1) if end > first else None
        return TopicOffset(min_offset=first, max_offset=end, last_update_timestamp=last_ms or 0)

    # ---- the broker

    def _show_configuration(self, call: Call) -> RemotingCommand:
        text = "".join(f"{key}={value}\n" for key, value in sorted(self._configuration().items()))
        version = DataVersion().to_json().decode()
        return call.request.reply(ext=GetBrokerConfigResponse(version=version).ext(), body=text.encode())

    def _change_configuration(self, call: Call) -> RemotingCommand:
        remark = "this broker's settings are changed in its configuration file only"
        return call.request.reply(ResponseCode.NO_PERMISSION, remark=remark)

    def _show_figures(self, call: Call) -> RemotingCommand:
        return call.request.reply(body=KVTable(table=dict(self._figures())).to_json())


def _filter_fault(filter_type: str) -> str | None:
    if filter_type in FILTER_TYPES:
        return None
    return f"topicFilterType = [{filter_type}] value invalid; expected {' or '.join(FILTER_TYPES)}"


def _no_topic(call: Call, topic: str) -> RemotingCommand:
    return call.request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
