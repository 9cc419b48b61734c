"""Errors of RocketMQ's servers, beyond ``metaq.errors``.

::

    MetaqError
    ├── RequestRefused         a server answered with a code other than success
    │   └── AccessDenied       ... because of the keys, or a missing permission
    ├── OffsetOutOfRange       the requested offset is deleted, or not stored yet
    ├── SendFailed             messages that are not stored, or not known to be
    ├── NameServersAway        none of the name servers answers              (retryable)
    ├── BrokerAway             a broker has no address in any route          (retryable)
    ├── QueuesAway             no route has queues that must exist           (retryable)
    ├── TopicNotReadable       no broker allows reads of a topic
    ├── RouteUnusable          a name server sends an invalid route
    ├── NoReply                no consumer replied to a request in time
    ├── NotNameServer          a broker is at the address of a name server
    └── TopicListMissing       the name server does not list topics
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metaq import ports
from metaq.errors import MetaqError, says_may_be_stored
from metaq.protocols.remoting.codes import ResponseCode, name_of, response_code

BUSY_TEXTS: Final = ("[REJECTREQUEST]", "[OVERLOAD]", "[TIMEOUT_CLEAN_QUEUE]", "[PC_SYNCHRONIZED]")
"""Start of the texts of an overloaded server, whatever the code."""

_ACL_TEXTS: Final = ("AclException", "signature", "accessKey", "No acl config", "No default permission", "access token")

_CLOSED_TEXTS: Final = ("is forbidden", "subscription group no permission")


class RequestRefused(MetaqError):
    """The server at ``address`` answered ``action`` with ``code`` and ``text``."""

    def __init__(self, address: object, action: str, code: int, text: str) -> None:
        self.address, self.action, self.code, self.text = str(address), action, code, text
        super().__init__(self.address, action, code, text)

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """Whether a retry may succeed."""
        code = response_code(self.code)
        return (code is not None and code.is_temporary) or self.text.startswith(BUSY_TEXTS)

    @property
    def away(self) -> bool:  # type: ignore[override]
        """Whether the server starts, stops, or has been replaced by another."""
        code = response_code(self.code)
        return code is not None and code.is_away

    @property
    def may_be_stored(self) -> bool:
        """Whether the refused messages may be stored nevertheless: the broker says so."""
        return says_may_be_stored(self.text)

    @property
    def topic_is_missing(self) -> bool:
        """Whether the server does not have the topic."""
        return self.code == ResponseCode.TOPIC_NOT_EXIST

    def __str__(self) -> str:
        name, code = name_of(self.code, response=True), response_code(self.code)
        text = self.text or (code.meaning if code is not None else "no reason given")
        return f"server {self.address} refused {self.action} with {name}: {text}"


class AccessDenied(RequestRefused):
    """The server does not accept the keys, or the account lacks a permission; ``needed`` names it."""

    retryable = False

    def __init__(self, address: object, action: str, code: int, text: str, needed: str) -> None:
        super().__init__(address, action, code, text)
        self.needed = needed
        self.args = (*self.args, needed)

    @property
    def keys_refused(self) -> bool:
        """Whether the server rejects the keys; otherwise the account lacks a permission."""
        return "permission" not in self.text

    def __str__(self) -> str:
        advice = "check accessKey and secretKey" if self.keys_refused else f"check that the account has {self.needed}"
        return f"{super().__str__()}; {advice}"


def is_access_refusal(code: int, text: str) -> bool:
    """Whether a refusal is about the account: 16 from 5.x, 1 with the text of an ACL exception from 4.x.

    16 is also the answer for a topic, group or broker that is closed to all clients.
    """
    if code == ResponseCode.NO_PERMISSION:
        return not any(each in text for each in _CLOSED_TEXTS)
    return code == ResponseCode.SYSTEM_ERROR and any(each in text for each in _ACL_TEXTS)


class OffsetOutOfRange(MetaqError):
    """``where`` has queue offsets ``[first, end)``, which do not include ``asked``."""

    def __init__(self, where: str, asked: int, first: int, end: int) -> None:
        self.where, self.asked, self.first, self.end = where, asked, first, end
        super().__init__(where, asked, first, end)

    @property
    def lost(self) -> bool:
        """Whether messages were deleted before they were read; otherwise the queue ends before ``asked``."""
        return self.asked < self.first

    def __str__(self) -> str:
        why = "older messages were removed" if self.lost else "the queue was created again, or its end was lost"
        return f"{self.where} has offsets {self.first} to {self.end}, not {self.asked}: {why}"


class BatchNotStored(MetaqError):
    """``count`` messages for ``where`` are not stored, or not known to be; ``reason`` says why."""

    def __init__(self, where: str, count: int, reason: str) -> None:
        self.where, self.count, self.reason = where, count, reason
        super().__init__(where, count, reason)

    def __str__(self) -> str:
        return f"{self.count} messages for {self.where} were not sent: {self.reason}"


class NameServersAway(MetaqError):
    """None of ``servers`` answers; ``reasons`` say why, in the same order."""

    retryable = True
    away = True

    def __init__(self, servers: Sequence[str], reasons: Sequence[str]) -> None:
        self.servers, self.reasons = list(servers), list(reasons)
        super().__init__(self.servers, self.reasons)

    def __str__(self) -> str:
        reasons = "; ".join(dict.fromkeys(self.reasons))
        servers = ", ".join(self.servers)
        return f"no name server answers, of {servers}: {reasons}; check the addresses, and that name servers run there"


class BrokerAway(MetaqError):
    """No route has an address of broker ``broker_name`` at the name servers ``servers``."""

    retryable = True
    away = True

    def __init__(self, broker_name: str, wanted: str, servers: Sequence[str]) -> None:
        self.broker_name, self.wanted, self.servers = broker_name, wanted, list(servers)
        super().__init__(broker_name, wanted, self.servers)

    def __str__(self) -> str:
        servers = ", ".join(self.servers)
        return f"{self.wanted} of broker {self.broker_name!r} is not registered at the name servers {servers}"


class QueuesAway(MetaqError):
    """``what`` must exist, but no route of the name servers ``servers`` has queues of the topic at ``brokers``."""

    retryable = True
    away = True

    def __init__(self, what: str, brokers: Sequence[str], servers: Sequence[str]) -> None:
        self.what, self.brokers, self.servers = what, list(brokers), list(servers)
        super().__init__(what, self.brokers, self.servers)

    def __str__(self) -> str:
        brokers = ", ".join(map(repr, self.brokers))
        return (
            f"{self.what}: the name servers {', '.join(self.servers)} have no queue of the topic at broker {brokers}, "
            "which is away, or does not have the topic; start it, or leave it out"
        )


class TopicNotReadable(MetaqError):
    """No broker allows reads of ``topic``, according to the name servers ``servers``."""

    def __init__(self, topic: str, servers: Sequence[str]) -> None:
        self.topic, self.servers = topic, list(servers)
        super().__init__(topic, self.servers)

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} cannot be read: the route of the name servers {', '.join(self.servers)} has no "
            "queue with read permission (perm 2 is write only); set perm to 6, or to 4 for reading only"
        )


class RouteUnusable(MetaqError):
    """The name server at ``address`` returned an invalid route for ``topic``; ``reason`` says why."""

    def __init__(self, address: object, topic: str, reason: str) -> None:
        self.address, self.topic, self.reason = str(address), topic, reason
        super().__init__(self.address, topic, reason)

    def __str__(self) -> str:
        return f"name server {self.address} gave an unusable route for topic {self.topic!r}: {self.reason}"


class NoReply(MetaqError):
    """No reply to the request ``message_id`` of ``topic`` came within ``seconds``. The request itself is stored."""

    def __init__(self, topic: str, message_id: str, seconds: float) -> None:
        self.topic, self.message_id, self.seconds = topic, message_id, seconds
        super().__init__(topic, message_id, seconds)

    def __str__(self) -> str:
        return (
            f"no reply to request {self.message_id} within {self.seconds:g} s: no consumer of topic {self.topic!r} "
            "replied; the request is stored, and a later reply is dropped"
        )


class NotNameServer(MetaqError):
    """A RocketMQ broker is at ``address``, where a name server is expected: it does not know routes."""

    def __init__(self, address: object) -> None:
        self.address = str(address)
        super().__init__(self.address)

    def __str__(self) -> str:
        return (
            f"{self.address} is a RocketMQ broker, not a name server; give the address of a name server, whose port "
            f"is {ports.NAME_SERVER} unless it is configured otherwise"
        )


class TopicListMissing(MetaqError):
    """The name server at ``address`` does not list topics (a proxy or hosted service)."""

    def __init__(self, address: object, text: str) -> None:
        self.address, self.text = str(address), text
        super().__init__(self.address, text)

    def __str__(self) -> str:
        return f"name server {self.address} does not list topics ({self.text}); name them with subscribe or assign"
