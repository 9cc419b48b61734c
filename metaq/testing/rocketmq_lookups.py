"""How a scripted RocketMQ broker answers administrators: topics (21, 215, 351), messages by id and by key (33, 12)."""

from __future__ import annotations

from typing import Final

from metaq.formats.rocketmq.properties import KEYS, UNIQ_KEY
from metaq.protocols.remoting.bodies.registration import TopicConfigBody, TopicConfigs
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import DeleteTopicInBroker, GetAllTopicConfig, GetTopicConfig
from metaq.protocols.remoting.headers.pulls import QueryMessage, QueryMessageResponse, ViewMessageById
from metaq.testing.rocketmq_store import Store, Stored, Topic

FOUND_MAX: Final = 64


def administration_answer(store: Store, command: RemotingCommand, *, is_v5: bool) -> RemotingCommand | None:
    """Return the response to one of these requests, ``None`` for others. 4.9.7 does not know 351."""
    match command.code:
        case GetAllTopicConfig.CODE:
            table = {name: _config(name, topic) for name, topic in store.topics.items()}
            return command.reply(body=TopicConfigs(topic_config_table=table).to_json())
        case GetTopicConfig.CODE if is_v5:
            name = GetTopicConfig.from_ext(command.ext).topic
            if name not in store.topics:
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
            return command.reply(body=_config(name, store.topics[name]).to_json())
        case DeleteTopicInBroker.CODE:
            store.delete_topic(DeleteTopicInBroker.from_ext(command.ext).topic)
            return command.reply()
        case ViewMessageById.CODE:
            return _view(store, command, ViewMessageById.from_ext(command.ext).offset)
        case QueryMessage.CODE:
            return _query(store, command, QueryMessage.from_ext(command.ext))
        case _:
            return None


def _config(name: str, topic: Topic) -> TopicConfigBody:
    return TopicConfigBody(
        topic_name=name, read_queue_nums=topic.read_queues, write_queue_nums=topic.write_queues, perm=topic.perm
    )


def _view(store: Store, command: RemotingCommand, physical_offset: int) -> RemotingCommand:
    for _, _, at, stored in store.all():
        if at == physical_offset:
            return command.reply(body=stored.record)
    text = f"can not find message by the offset, {physical_offset}"
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=text)


def _query(store: Store, command: RemotingCommand, asked: QueryMessage) -> RemotingCommand:
    """Look up messages by the hash of a key, as the index does, so messages of other keys with this hash are
    included.
    """
    found = [
        stored.record
        for topic, _, _, stored in store.all()
        if topic == asked.topic
        and asked.begin_timestamp <= stored.store_ms <= asked.end_timestamp
        and any(_hash(key) == _hash(asked.key) for key in _keys(stored))
    ]
    ext = QueryMessageResponse(index_last_update_timestamp=0, index_last_update_phyoffset=0).ext()
    if not found:
        text = "can not find message, maybe time range not correct"
        return command.reply(ResponseCode.QUERY_NOT_FOUND, ext, remark=text)
    return command.reply(ext=ext, body=b"".join(found[: min(asked.max_num, FOUND_MAX)]))


def _keys(stored: Stored) -> list[str]:
    return [*stored.properties.get(KEYS, "").split(), *filter(None, [stored.properties.get(UNIQ_KEY)])]


def _hash(key: str) -> str:
    return key[-4:]
