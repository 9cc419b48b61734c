"""Access control: accounts and signatures of requests, and the allow lists of certificate names.

Requests are checked before they are executed. Both of these must allow a request:

* **Accounts**, if the broker has some. Every request, except requests to a name server, needs the access key of an
  account and a valid signature. Then the account's permissions apply::

      send (10, 310, 320, 370), reply (324, 325)         PUB on the topic, of each message of a batch: they are one's
      end a transaction (37)                             PUB on the topic of its half message
      pull (11, 361, 31002), committed offsets (14, 15)  SUB on topic and group
      heartbeat (34), filters (46), locks (41, 42)       SUB on each group, and on each topic in it
      goodbye (35), members (38), send back (36),
      questions to a client (307, 309)                   SUB on the group
      lookups (12), entries of queues (321),
      reset of offsets (222)                             SUB on the topic, 222 on the group too
      offsets of queues (29, 30, 31, 32)                 PUB or SUB on the topic
      topics, groups, settings (17, 18, 215, 200, 225,
      207, 25), removal of old messages (329),
      accounts (50 to 54)                                an administrator
      what changes routes (100, 102 to 104, 205, ...)    an administrator, or a broker with an administrator's account
      other questions                                    any account

* **Allow lists** of ``server.ini`` (``allowPublish``, ``allowSubscribe``), which name TLS certificates: for the same
  topics, as for MetaQ's clients.

A request that finds a message by its offset in the log needs SUB on its topic (33, 36, 309), or PUB (37), which
``refusal_for`` checks. The topic of a waiting message is its target. Only a producer that may send to that topic is
asked about a half message (``may_send``). System topics with messages of many topics are readable for administrators
and for accounts that name such a topic.

Refusals are the same as in 4.9.7 (code 1, with the name of its exception, which clients search for), and code 16 for
clients of 5.x.

Source: docs/rocketmq-broker.md, "Access".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from metaq.errors import FieldError
from metaq.protocols.remoting.acl import ACCESS_KEY, Credentials, is_signed_by
from metaq.protocols.remoting.bodies.groups import CheckClientRequestBody, HeartbeatData, LockBatchRequestBody
from metaq.protocols.remoting.codes import RequestCode, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.sections import TopicConfig
from metaq_broker.rocketmq.groups.offset_requests import VERSION_5
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.rocketmq.system_topics import OF_MANY_TOPICS, RETRY_PREFIX
from metaq_broker.serve.accounts.account_list import ANY, Account, AccountList, Permission, is_trusted_by
from metaq_broker.serve.session import Client

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
_CODE: Final = RequestCode

PUB: Final = Permission.PUB
SUB: Final = Permission.SUB

ADMIN_CODES: Final = frozenset(
    {
        _CODE.UPDATE_AND_CREATE_TOPIC,
        _CODE.UPDATE_AND_CREATE_TOPIC_LIST,
        _CODE.UPDATE_BROKER_CONFIG,
        _CODE.DELETE_TOPIC_IN_BROKER,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        _CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        _CODE.DELETE_EXPIRED_COMMITLOG,
        _CODE.DELETE_SUBSCRIPTIONGROUP,
        _CODE.UPDATE_AND_CREATE_ACL_CONFIG,
        _CODE.DELETE_ACL_CONFIG,
        _CODE.GET_BROKER_CLUSTER_ACL_INFO,
        _CODE.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        _CODE.GET_BROKER_CLUSTER_ACL_CONFIG,
        _CODE.PUT_KV_CONFIG,
        _CODE.DELETE_KV_CONFIG,
        _CODE.REGISTER_BROKER,
        _CODE.UNREGISTER_BROKER,
        _CODE.WIPE_WRITE_PERM_OF_BROKER,
        _CODE.ADD_WRITE_PERM_OF_BROKER,
        _CODE.DELETE_TOPIC_IN_NAMESRV,
        _CODE.REGISTER_TOPIC_IN_NAMESRV,
        _CODE.UPDATE_NAMESRV_CONFIG,
    }
)
"""Requests for administrators only."""

OPEN_CODES: Final = frozenset(
    {
        _CODE.GET_ROUTEINFO_BY_TOPIC,
        _CODE.GET_BROKER_CLUSTER_INFO,
        _CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        _CODE.GET_TOPICS_BY_CLUSTER,
        _CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        _CODE.GET_KV_CONFIG,
        _CODE.GET_KVLIST_BY_NAMESPACE,
        _CODE.QUERY_DATA_VERSION,
    }
)
"""Requests to a name server, which need no key."""

_SENDS: Final[dict[int, str]] = {
    _CODE.SEND_MESSAGE: "topic",
    _CODE.SEND_MESSAGE_V2: "b",
    _CODE.SEND_BATCH_MESSAGE: "b",
    _CODE.SEND_REPLY_MESSAGE: "topic",
    _CODE.SEND_REPLY_MESSAGE_V2: "b",
}
_OF_QUEUES: Final = frozenset(
    {
        _CODE.SEARCH_OFFSET_BY_TIMESTAMP,
        _CODE.GET_MAX_OFFSET,
        _CODE.GET_MIN_OFFSET,
        _CODE.GET_EARLIEST_MSG_STORETIME,
    }
)
_OF_TOPIC_AND_GROUP: Final[dict[int, str]] = {
    _CODE.PULL_MESSAGE: "consumerGroup",
    _CODE.LITE_PULL_MESSAGE: "consumerGroup",
    _CODE.PULL_FRAMES: "consumerGroup",
    _CODE.QUERY_CONSUMER_OFFSET: "consumerGroup",
    _CODE.UPDATE_CONSUMER_OFFSET: "consumerGroup",
    _CODE.INVOKE_BROKER_TO_RESET_OFFSET: "group",
}
_OF_GROUP: Final[dict[int, str]] = {
    _CODE.UNREGISTER_CLIENT: "consumerGroup",
    _CODE.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup",
    _CODE.CONSUMER_SEND_MSG_BACK: "group",
    _CODE.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    _CODE.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


class Need(NamedTuple):
    """Something that a request needs: any of ``permission`` on a topic or a group."""

    name: str
    permission: Permission
    is_group: bool = False

    @property
    def is_of_many(self) -> bool:
        """Whether the topic has messages of many topics."""
        return self.name in OF_MANY_TOPICS and self.permission == SUB

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'topic'} {self.name}"


def needs_of(command: RemotingCommand) -> Iterator[Need]:
    """Yield the permissions on topics and groups that a request needs.

    Raises:
        FieldError: Its body cannot be read.
    """
    code, ext = command.code, command.ext
    if (field := _SENDS.get(code)) is not None:
        yield _of_topic(ext.get(field, ""), PUB)
    elif code == _CODE.RECALL_MESSAGE or (code == _CODE.END_TRANSACTION and ext.get("topic")):
        yield _of_topic(ext.get("topic", ""), PUB)
    elif (field := _OF_TOPIC_AND_GROUP.get(code)) is not None:
        yield _of_topic(ext.get("topic", ""), SUB)
        yield Need(ext.get(field, ""), SUB, is_group=True)
    elif (field := _OF_GROUP.get(code)) is not None:
        if (group := ext.get(field, "")) or code != _CODE.UNREGISTER_CLIENT:
            yield Need(group, SUB, is_group=True)
    elif code in _OF_QUEUES:
        yield _of_topic(ext.get("topic", ""), ANY)
    elif code in (_CODE.QUERY_MESSAGE, _CODE.QUERY_CONSUME_QUEUE):
        yield _of_topic(ext.get("topic", ""), SUB)
    else:
        yield from _of_body(command)


def _of_body(command: RemotingCommand) -> Iterator[Need]:
    if command.code == _CODE.HEART_BEAT:
        for group in HeartbeatData.from_json(command.body).consumer_data_set:
            yield Need(group.group_name, SUB, is_group=True)
            for each in group.subscription_data_set:
                yield _of_topic(each.topic, SUB)
    elif command.code == _CODE.CHECK_CLIENT_CONFIG and command.body:
        asked = CheckClientRequestBody.from_json(command.body)
        yield Need(asked.group, SUB, is_group=True)
        yield _of_topic(asked.subscription_data.topic, SUB)
    elif command.code in (_CODE.LOCK_BATCH_MQ, _CODE.UNLOCK_BATCH_MQ):
        locks = LockBatchRequestBody.from_json(command.body)
        yield Need(locks.consumer_group, SUB, is_group=True)
        for topic in {queue.topic for queue in locks.mq_set}:
            yield _of_topic(topic, SUB)


def _of_topic(topic: str, permission: Permission) -> Need:
    """Return the need for a topic. A retry topic needs the group's permission; a dead letter topic is like
    any other.
    """
    if topic.startswith(RETRY_PREFIX):
        return Need(topic.removeprefix(RETRY_PREFIX), SUB, is_group=True)
    return Need(topic, permission)


class Access:
    """Checks requests. ``accounts`` returns the current accounts, ``None`` if none are required."""

    def __init__(self, accounts: Callable[[], AccountList | None], config: Callable[[], BrokerConfig]) -> None:
        self._accounts, self._config = accounts, config
        self._looked_at: BrokerConfig | None = None
        self._lists = False

    def check(self, call: Call) -> RemotingCommand | None:
        """Return the refusal of a request, ``None`` if it may be carried out."""
        command, accounts = call.request, self._accounts()
        try:
            account = None if accounts is None else _account(call, accounts)
            if command.code == _CODE.HEART_BEAT:
                call.session.account = None if account is None else account.access_key
            if account is not None and command.code in ADMIN_CODES and not account.is_admin:
                raise _Refused(
                    f"Need admin permission for request code={command.code}, but accessKey={account.access_key} is not"
                )
            if account is not None or self._has_allow_lists():
                for need in needs_of(command):
                    self._check_need(call.session.client, account, need)
        except _Refused as refused:
            return _refusal(command, str(refused))
        except FieldError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return None

    def refusal_for(self, call: Call, topic: str, needed: Permission) -> RemotingCommand | None:
        """Return the refusal of a request that has found a message of ``topic``, ``None`` if it is allowed."""
        accounts = self._accounts()
        try:
            account = None if accounts is None else _account(call, accounts, signed=True)
            self._check_need(call.session.client, account, _of_topic(topic, needed))
        except _Refused as refused:
            return _refusal(call.request, str(refused))
        return None

    def may_send(self, session: RemotingSession, topic: str) -> bool:
        """Return whether the client that sends heartbeats on a connection may send to a topic."""
        accounts, account = self._accounts(), None
        if accounts is not None and not accounts.is_trusted(_ip_of(session.client.peer)):
            account = accounts.accounts.get(session.account or "")
            if account is None:
                return False
        try:
            self._check_need(session.client, account, _of_topic(topic, PUB))
        except _Refused:
            return False
        return True

    def _has_allow_lists(self) -> bool:
        config = self._config()
        if config is not self._looked_at:
            each: tuple[TopicConfig, ...] = (config.system, *config.topics.values())
            self._looked_at, self._lists = config, any(one.allow_publish or one.allow_subscribe for one in each)
        return self._lists

    def _check_need(self, client: Client, account: Account | None, need: Need) -> None:
        if account is not None:
            check = account.may_use_group if need.is_group else account.may_use_topic
            if not check(need.name, need.permission) or (need.is_of_many and not account.names(need.name)):
                raise _Refused(f"No permission for {need}: accessKey={account.access_key} needs {_words(need)}")
        if need.is_group:
            return
        names, config = client.names or frozenset(), self._config()

        def is_among(allowed: tuple[str, ...]) -> bool:
            return not allowed or not names.isdisjoint(allowed)

        is_allowed = PUB in need.permission and is_among(config.topic_settings(need.name).allow_publish)
        is_allowed |= SUB in need.permission and all(map(is_among, config.reader_lists(need.name)))
        if not is_allowed:
            shown = ", ".join(sorted(names)[:5]) or "a client without certificate"
            raise _Refused(f"No permission for {need}: allowPublish and allowSubscribe do not name {shown}")


class _Refused(Exception):
    """The request is refused; the text is the reason."""


def _account(call: Call, accounts: AccountList, *, signed: bool = False) -> Account | None:
    """Return the account of a request; ``None`` if it needs none. ``signed``: its signature was checked before.

    Raises:
        _Refused: It has no account, or a wrong signature.
    """
    command, address = call.request, _ip_of(call.session.client.peer)
    if command.code in OPEN_CODES or accounts.is_trusted(address):
        return None
    access_key = command.ext.get(ACCESS_KEY)
    if not access_key:
        raise _Refused("No accessKey is configured")
    account = accounts.accounts.get(access_key)
    if account is None:
        raise _Refused(f"No acl config for {access_key[:80]}")
    if signed or is_trusted_by(account, address):
        return account
    if not is_signed_by(command, Credentials(account.access_key, account.secret_key)):
        raise _Refused(f"Check signature failed for accessKey={access_key}")
    return account


def _words(need: Need) -> str:
    return " or ".join(each.name or "" for each in (PUB, SUB) if each in need.permission)


def _ip_of(peer: str) -> str:
    return peer.rpartition(":")[0].strip("[]")


def _refusal(command: RemotingCommand, reason: str) -> RemotingCommand:
    if command.version >= VERSION_5:
        return command.reply(ResponseCode.NO_PERMISSION, remark=reason)
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=_EXCEPTION + reason)
