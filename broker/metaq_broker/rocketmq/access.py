"""Access control: accounts and signatures of requests, and the allow lists of certificate names.

Requests are checked before they are executed. Both of these must allow a request:

* **Accounts**, if the broker has some. Every request, except requests to a name server, needs the access key of an
  account and a valid signature. Then the account's permissions apply: the ``RIGHT`` of the request's row, see
  ``metaq.protocols.remoting.headers``.

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

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from metaq.errors import FieldError
from metaq.formats.topic_names import RETRY_PREFIX
from metaq.protocols.remoting.acl import ACCESS_KEY, Credentials, is_signed_by
from metaq.protocols.remoting.bodies.groups import CheckClientRequestBody, HeartbeatData, LockBatchRequestBody
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import REQUESTS
from metaq.protocols.remoting.headers.clients import CheckClientConfig, HeartBeat, LockBatchMq, UnlockBatchMq
from metaq.protocols.remoting.headers.fields import Request, Right, fields_of
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.rocketmq.session import Call, RemotingSession
from metaq_broker.rocketmq.system_topics import OF_MANY_TOPICS
from metaq_broker.serve.accounts.account_list import ANY, Account, AccountList, Permission, is_trusted_by
from metaq_broker.serve.session import Client

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "

PUB: Final = Permission.PUB
SUB: Final = Permission.SUB

_TOPIC_PERMISSIONS: Final = {
    Right.SEND: PUB,
    Right.READ: SUB,
    Right.READ_AS_GROUP: SUB,
    Right.SEND_OR_READ: ANY,
}
_GROUP_RIGHTS: Final = (Right.GROUP, Right.READ_AS_GROUP)


class _Row(NamedTuple):
    """The right that a request needs, and the fields that name its topic and its group."""

    right: Right
    topic: NamedField | None
    group: NamedField | None


class NamedField(NamedTuple):
    """A field of a request by its name on the wire. An optional one that is missing needs no permission."""

    name: str
    required: bool

    def of(self, ext: Mapping[str, str]) -> str | None:
        text = ext.get(self.name, "")
        return text if text or self.required else None


def _row(code: int, header: type[Request]) -> _Row:
    named = {
        each.attribute: NamedField(each.short if code in header.SHORT_CODES else each.name, each.required)
        for each in fields_of(header)
    }
    return _Row(header.RIGHT, named.get("topic"), named.get("consumer_group") or named.get("group"))


_ROWS: Final = {code: _row(code, header) for code, header in REQUESTS.items()}


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


def _right_of(command: RemotingCommand) -> Right:
    row = _ROWS.get(command.code)
    return Right.ACCOUNT if row is None else row.right


def needs_of(command: RemotingCommand) -> Iterator[Need]:
    """Yield the permissions on topics and groups that a request needs.

    Raises:
        FieldError: Its body cannot be read.
    """
    row, ext = _ROWS.get(command.code), command.ext
    if row is None:
        return
    if row.right is Right.IN_BODY:
        yield from _of_body(command)
        return
    permission = _TOPIC_PERMISSIONS.get(row.right)
    if permission is not None and row.topic is not None and (topic := row.topic.of(ext)) is not None:
        yield _of_topic(topic, permission)
    if row.right in _GROUP_RIGHTS and row.group is not None and (group := row.group.of(ext)) is not None:
        yield Need(group, SUB, is_group=True)


def _of_body(command: RemotingCommand) -> Iterator[Need]:
    if command.code == HeartBeat.CODE:
        for group in HeartbeatData.from_json(command.body).consumer_data_set:
            yield Need(group.group_name, SUB, is_group=True)
            for each in group.subscription_data_set:
                yield _of_topic(each.topic, SUB)
    elif command.code == CheckClientConfig.CODE and command.body:
        asked = CheckClientRequestBody.from_json(command.body)
        yield Need(asked.group, SUB, is_group=True)
        yield _of_topic(asked.subscription_data.topic, SUB)
    elif command.code in (LockBatchMq.CODE, UnlockBatchMq.CODE):
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


class KnownAccounts(Protocol):
    """The part of ``AccountsFile`` that is needed here."""

    @property
    def accounts(self) -> AccountList: ...


class Configured(Protocol):
    """The part of ``Engine`` that is needed here."""

    @property
    def config(self) -> BrokerConfig: ...


class Access:
    """Checks requests. ``known`` has the accounts in effect; ``None``: none are required."""

    def __init__(self, known: KnownAccounts | None, engine: Configured) -> None:
        self._known, self._engine = known, engine

    def check(self, call: Call) -> RemotingCommand | None:
        """Return the refusal of a request, ``None`` if it may be carried out."""
        command, known = call.request, self._known
        try:
            account = None if known is None else _account(call, known.accounts)
            if command.code == HeartBeat.CODE:
                call.session.account = None if account is None else account.access_key
            if account is not None and _right_of(command) is Right.ADMIN and not account.is_admin:
                raise _Refused(
                    f"Need admin permission for request code={command.code}, but accessKey={account.access_key} is not"
                )
            if account is not None or self._engine.config.has_allow_lists:
                for need in needs_of(command):
                    self._check_need(call.session.client, account, need)
        except _Refused as refused:
            return _refusal(command, str(refused))
        except FieldError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return None

    @property
    def depends_on_topics(self) -> bool:
        """Whether some topics are not for everybody: there are accounts, or lists of names in certificates."""
        return self._known is not None or self._engine.config.has_allow_lists

    def refusal_for(self, call: Call, topic: str, needed: Permission) -> RemotingCommand | None:
        """Return the refusal of a request that has found a message of ``topic``, ``None`` if it is allowed."""
        known = self._known
        try:
            account = None if known is None else _account(call, known.accounts, signed=True)
            self._check_need(call.session.client, account, _of_topic(topic, needed))
        except _Refused as refused:
            return _refusal(call.request, str(refused))
        return None

    def may_send(self, session: RemotingSession, topic: str) -> bool:
        """Return whether the client that sends heartbeats on a connection may send to a topic."""
        known, account = self._known, None
        if known is not None and not known.accounts.is_trusted(_ip_of(session.client.peer)):
            account = known.accounts.accounts.get(session.account or "")
            if account is None:
                return False
        try:
            self._check_need(session.client, account, _of_topic(topic, PUB))
        except _Refused:
            return False
        return True

    def _check_need(self, client: Client, account: Account | None, need: Need) -> None:
        if account is not None:
            check = account.may_use_group if need.is_group else account.may_use_topic
            if not check(need.name, need.permission) or (need.is_of_many and not account.names(need.name)):
                raise _Refused(f"No permission for {need}: accessKey={account.access_key} needs {_words(need)}")
        if need.is_group:
            return
        names, config = client.names or frozenset(), self._engine.config

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
    if _right_of(command) is Right.OPEN or accounts.is_trusted(address):
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
