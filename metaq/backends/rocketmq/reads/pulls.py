"""A single pull of a queue's messages: the request, and the meaning of its response.

Pulls include their subscription, so the group needs no members and nothing can move positions. Pulls do not commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from metaq.backends.rocketmq.answers import AnswerReader
from metaq.backends.rocketmq.session import Session
from metaq.formats.rocketmq.tags import TagFilter
from metaq.protocols.remoting.bodies.groups import CheckClientRequestBody, SubscriptionData
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import CheckClientConfig
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, SUSPEND, PullMessage, PullMessageResponse

GROUP: Final = "metaq-spark"
"""Consumer group of this client's requests. A broker creates it on first use, unless configured otherwise."""

_REMOVED: Final = "MESSAGE_WAS_REMOVING"
"""The remark of 20 that distinguishes deleted messages from filtered ones."""


@dataclass(frozen=True)
class Subscription:
    """A filter at the broker. ``TAG``: ``*``, or tags separated by ``||``. ``SQL92``: a condition over properties."""

    expression: str = "*"
    type: str = "TAG"

    def __post_init__(self) -> None:
        if self.type not in ("TAG", "SQL92"):
            raise ValueError(f"type of subscription {self.type!r}: expected TAG or SQL92")
        if self.type == "SQL92" and not self.expression.strip():
            raise ValueError("SQL92 subscription: expected an expression such as price > 10")
        if self.type == "TAG":
            TagFilter.parse(self.expression)

    @classmethod
    def of(cls, tags: str, sql: str | None) -> Subscription:
        """Return the filter by ``tags``, or by ``sql`` instead.

        Raises:
            ValueError: One of them is not valid, or both leave messages out.
        """
        if sql is None:
            return cls(tags)
        if not TagFilter.parse(tags).is_all:
            raise ValueError("tags and sql: expected one of them")
        return cls(sql, "SQL92")

    @cached_property
    def tags(self) -> TagFilter:
        """Which messages to keep: a broker compares hashes of tags, so it may send messages with other tags."""
        return TagFilter.parse(self.expression if self.type == "TAG" else None)

    @property
    def text(self) -> str:
        """The expression as brokers get it."""
        return self.tags.expression if self.type == "TAG" else self.expression.strip()

    @property
    def is_all(self) -> bool:
        """Whether nothing is filtered, so that offsets have no gaps."""
        return self.type == "TAG" and self.tags.is_all


ALL: Final = Subscription()


@dataclass(frozen=True)
class PulledQueue:
    """The queue that is pulled, as its broker knows it, and the group that reads it."""

    topic: str
    broker_name: str
    queue_id: int
    group: str = GROUP
    subscription: Subscription = ALL

    def pull(self, offset: int, messages_max: int, suspend_ms: int = 0) -> RemotingCommand:
        """Return the request for up to ``messages_max`` messages from ``offset`` on.

        If there are none, the broker answers at once, or within about ``suspend_ms`` if a message arrives meanwhile.
        """
        ext = {**self._pull.ext, "queueOffset": str(offset), "maxMsgNums": str(messages_max)}
        if suspend_ms:
            ext |= {"sysFlag": str(SUBSCRIPTION | SUSPEND), "suspendTimeoutMillis": str(suspend_ms)}
        return request(self._pull.code, ext)

    @cached_property
    def _pull(self) -> RemotingCommand:
        """Return a pull without its two variable fields: the others are the same for each."""
        header = PullMessage(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=0,
            max_msg_nums=0,
            sys_flag=SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=self.subscription.text,
            sub_version=0,
            expression_type=self.subscription.type,
        )
        return to_request(header, broker_name=self.broker_name)

    def check(self, session: Session) -> None:
        """Have the broker compile an SQL92 expression: 4.x sends all messages if it cannot compile it.

        Raises:
            RequestRefused: The broker does not compile it, or does not support SQL.
        """
        if self.subscription.type != "SQL92":
            return
        subscription = SubscriptionData(
            topic=self.topic, sub_string=self.subscription.expression, expression_type="SQL92"
        )
        body = CheckClientRequestBody(client_id=self.group, group=self.group, subscription_data=subscription)
        command = to_request(CheckClientConfig(), body.to_json(), broker_name=self.broker_name)
        session.ask(command, f"the SQL92 expression {self.subscription.expression!r} on topic {self.topic}")

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic} at broker {self.broker_name}"


class PulledRecords(NamedTuple):
    """Records, or none that match; continue at ``next_offset``. ``broker_id``: which server the broker suggests next.

    ``removed``: there are no records because retention has deleted them, although the queue's index still has them.
    """

    next_offset: int
    data: memoryview
    broker_id: int
    max_offset: int
    removed: bool = False


class NotYet(NamedTuple):
    """Nothing at the requested offset: the queue's end, as far as this server knows."""

    end: int
    text: str
    broker_id: int


class Moved(NamedTuple):
    """The requested offset is outside ``[first, end)``."""

    first: int
    end: int


def read_outcome(
    session: AnswerReader, command: RemotingCommand, response: RemotingCommand
) -> PulledRecords | NotYet | Moved:
    """Return the meaning of ``response`` to a pull.

    Raises:
        RequestRefused, AccessDenied: The broker refused it.
        ProtocolError: The response is not valid. A session is closed.
    """
    asked = int(command.ext["queueOffset"])
    code = response.code
    if code not in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        raise session.refusal(response, command, describe(command))
    fields = session.read(response, PullMessageResponse)
    if code == ResponseCode.PULL_OFFSET_MOVED:
        return Moved(fields.min_offset, fields.max_offset)
    if code == ResponseCode.PULL_NOT_FOUND:
        return NotYet(fields.max_offset, response.remark or "no message", fields.suggest_which_broker_id)
    if fields.next_begin_offset <= asked:
        what = f"{describe(command)} was answered with offset {fields.next_begin_offset} to go on at"
        raise session.protocol_error(what)
    removed = code == ResponseCode.PULL_RETRY_IMMEDIATELY and response.remark == _REMOVED
    broker_id, data = fields.suggest_which_broker_id, memoryview(response.body)
    return PulledRecords(fields.next_begin_offset, data, broker_id, fields.max_offset, removed)


def describe(command: RemotingCommand) -> str:
    """Return a description of a pull for errors."""
    ext = command.ext
    return f"pull of topic {ext['topic']} queue {ext.get('bname')}:{ext['queueId']} at offset {ext['queueOffset']}"
