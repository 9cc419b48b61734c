"""Finds the MetaQ port of a bundled broker, which serves the same log.

Transactions over many messages, queues and brokers use MetaQ's protocol; RocketMQ's own cover one message each.
"""

from __future__ import annotations

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.errors import ExtensionMissing, MetaqError, ProtocolError
from metaq.model import BROKER_ID_MAX, Address
from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.codes import VERSION_5, ResponseCode
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import GetMetaQBroker, GetMetaQBrokerResponse

__all__ = ["MetaQBroker", "NotBundled", "ask_for_metaq", "require_timers"]


class NotBundled(MetaqError):
    """The broker ``broker_name`` at ``address`` is not the bundled one, or an old version of it."""

    def __init__(self, broker_name: str, address: object) -> None:
        self.broker_name, self.address = broker_name, str(address)
        super().__init__(broker_name, self.address)

    def __str__(self) -> str:
        return f"broker {self.broker_name!r} at {self.address} is not a metaq-broker, or is an earlier version of it"


def ask_for_metaq(pool: SessionPool, broker_name: str, address: Address) -> MetaQBroker:
    """Ask the broker at ``address`` for its MetaQ port.

    Raises:
        NotBundled: It does not know the request.
        RequestRefused, AccessDenied: It refuses to answer.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked, or its answer is not valid.
    """
    command = to_request(GetMetaQBroker(), broker_name=broker_name)
    with pool.lease(address) as session:
        try:
            response = session.ask(command, "the question where it serves MetaQ's protocol")
        except RequestRefused as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotBundled(broker_name, address) from None
            raise
        found = session.read(response, GetMetaQBrokerResponse)
        try:
            if not 0 <= found.broker_id <= BROKER_ID_MAX:
                raise ValueError(f"broker id {found.broker_id}")
            return MetaQBroker(found.broker_id, Address.parse(found.address))
        except ValueError as error:
            what = f"broker {broker_name!r} reports an invalid MetaQ address: {error}"
            raise ProtocolError(what, address=address) from None


def require_timers(pool: SessionPool, broker_name: str, address: Address) -> None:
    """Check that a broker supports delivery times: one of 5.x, or the bundled one.

    Others would deliver such a message at once.

    Raises:
        ExtensionMissing: It does not.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    command = to_request(GetMetaQBroker(), broker_name=broker_name)
    with pool.lease(address) as session:
        response = session.call(command, "the question which version it has")
    if response.code != ResponseCode.SUCCESS and response.version < VERSION_5:
        raise ExtensionMissing(address, "timers", "a message with delay or deliver_at")
