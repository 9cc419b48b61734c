"""RocketMQ's response codes, names of request codes, languages and versions.

The code of a request is in the class of its header: ``headers``.

Source: docs/remoting-protocol.md, "Codes".
"""

from __future__ import annotations

from enum import Flag, IntEnum, auto
from typing import Final

VERSION: Final = 407
"""The version that this side announces: the ordinal of 4.9.7. From 401 on a name server writes routes as
standard JSON.
"""

STANDARD_JSON_VERSION: Final = 401
"""The first version whose requests a name server answers with routes in standard JSON."""

VERSION_5: Final = 413
"""The ordinal of 5.0.0, which peers of 5.x announce, or a higher one."""

LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS"),
    *("RUST", "NODE_JS"),
)
"""Names of languages; the binary header has their index."""


_REQUEST_NAMES: Final[dict[int, str]] = {}


def request_code(number: int, name: str) -> int:
    """Return ``number``, the code of a request, and register its name. It stands in the class of the request's header.

    Raises:
        ValueError: Another request has the number.
    """
    if _REQUEST_NAMES.setdefault(number, name) != name:
        raise ValueError(f"request code {number} is {_REQUEST_NAMES[number]}, and cannot be {name}")
    return number


class _Then(Flag):
    """What a client does about a response."""

    NOTHING = 0
    STORED = auto()
    """Of a send: the message is stored."""
    ELSEWHERE = auto()
    """Of a send: a Java producer tries another broker."""
    LATER = auto()
    """The same request may succeed later."""
    AWAY = auto()
    """The server is not responsible now: it starts, stops, or has another role."""


class ResponseCode(IntEnum):
    """Codes of responses: a row for each, which docs/remoting-protocol.md shows."""

    def __new__(cls, number: int, meaning: str, then: _Then = _Then.NOTHING) -> ResponseCode:
        """Return the member for a row."""
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning, code._then = meaning, then
        return code

    meaning: str
    _then: _Then

    @property
    def is_stored(self) -> bool:
        """Whether a send with this response was stored; other than 0, with less durability than configured."""
        return _Then.STORED in self._then

    @property
    def tries_elsewhere(self) -> bool:
        """Whether a Java producer sends the message to another broker."""
        return _Then.ELSEWHERE in self._then

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return _Then.LATER in self._then

    @property
    def is_away(self) -> bool:
        """Whether the server is not responsible now: it starts, stops, or has another role."""
        return _Then.AWAY in self._then

    SUCCESS = 0, "done", _Then.STORED
    SYSTEM_ERROR = 1, "failed; the text says why", _Then.ELSEWHERE
    SYSTEM_BUSY = 2, "the server is overloaded", _Then.ELSEWHERE | _Then.LATER
    REQUEST_CODE_NOT_SUPPORTED = 3, "the server does not know the request"
    TRANSACTION_FAILED = 4, "a step of a transaction failed"
    FLUSH_DISK_TIMEOUT = 10, "the disk was too slow; the message is stored, and not yet durable", _Then.STORED
    SLAVE_NOT_AVAILABLE = 11, "no slave is near enough; the message is stored at the master", _Then.STORED
    FLUSH_SLAVE_TIMEOUT = 12, "the slave was too slow; the message is stored at the master", _Then.STORED
    MESSAGE_ILLEGAL = 13, "the message is too large, or otherwise not allowed"
    SERVICE_NOT_AVAILABLE = (
        14,
        "the server starts, stops, or cannot write now",
        _Then.ELSEWHERE | _Then.LATER | _Then.AWAY,
    )
    VERSION_NOT_SUPPORTED = 15, "the client's version is not supported"
    NO_PERMISSION = 16, "the account, topic, group or broker does not allow it", _Then.ELSEWHERE
    TOPIC_NOT_EXIST = 17, "the topic does not exist", _Then.ELSEWHERE
    TOPIC_EXIST_ALREADY = 18, "the topic exists"
    PULL_NOT_FOUND = 19, "no message there yet"
    PULL_RETRY_IMMEDIATELY = 20, "no message matches; continue at nextBeginOffset"
    PULL_OFFSET_MOVED = 21, "the offset is outside of the queue; continue at nextBeginOffset"
    QUERY_NOT_FOUND = 22, "nothing was found"
    SUBSCRIPTION_PARSE_FAILED = 23, "the expression cannot be read"
    SUBSCRIPTION_NOT_EXIST = 24, "the group's members do not read the topic"
    SUBSCRIPTION_NOT_LATEST = 25, "the broker has an older subscription; send a heartbeat"
    SUBSCRIPTION_GROUP_NOT_EXIST = 26, "the group does not exist"
    FILTER_DATA_NOT_EXIST = 27, "the broker has no filter of the group"
    FILTER_DATA_NOT_LATEST = 28, "the broker's filter of the group is older"
    INVALID_PARAMETER = 29, "a name or a number is not allowed (5.x)"
    TRANSACTION_SHOULD_COMMIT = 200, "commit the transaction"
    TRANSACTION_SHOULD_ROLLBACK = 201, "roll the transaction back"
    TRANSACTION_STATE_UNKNOW = 202, "the state of the transaction is unknown"
    TRANSACTION_STATE_GROUP_WRONG = 203, "the transaction is another group's"
    NO_BUYER_ID = 204, "a buyer id is missing", _Then.ELSEWHERE
    NOT_IN_CURRENT_UNIT = 205, "the message belongs to another unit", _Then.ELSEWHERE
    CONSUMER_NOT_ONLINE = 206, "the consumer is not connected"
    CONSUME_MSG_TIMEOUT = 207, "the consumer did not answer in time"
    NO_MESSAGE = 208, "there is no message"
    POLLING_FULL = 209, "too many requests wait for messages (5.x)"
    POLLING_TIMEOUT = 210, "no message came while the request waited (5.x)"
    BROKER_NOT_EXIST = 211, "the broker is not known"
    BROKER_DISPATCH_NOT_COMPLETE = 212, "the broker is still starting"
    BROADCAST_CONSUMPTION = 213, "every member of the group reads every message"
    FLOW_CONTROL = 215, "too many requests", _Then.LATER
    NOT_LEADER_FOR_QUEUE = 501, "another broker is the master", _Then.LATER | _Then.AWAY
    ILLEGAL_OPERATION = 604, "not allowed"
    GO_AWAY = 1500, "the server stops; use another connection", _Then.ELSEWHERE | _Then.LATER | _Then.AWAY
    USER_NOT_EXIST = 3001, "the user does not exist"
    POLICY_NOT_EXIST = 3002, "the policy does not exist"


STORED_SEND_CODES: Final = frozenset(code for code in ResponseCode if code.is_stored)
"""Responses to a send that was stored; all but 0 with less durability than configured."""

_RESPONSES: Final = {int(code): code for code in ResponseCode}


def response_code(number: int) -> ResponseCode | None:
    """Return the row of a response code, ``None`` for an unknown one."""
    return _RESPONSES.get(number)


def name_of(code: int, response: bool = False) -> str:
    """Return a code for logs and errors: ``PULL_MESSAGE (11)``, or the number if it has no name here."""
    known = response_code(code) if response else None
    name = known.name if known is not None else None if response else _REQUEST_NAMES.get(code)
    return f"{name} ({code})" if name else str(code)
