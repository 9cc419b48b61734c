"""Which handler carries out a request: by its code. One for a broker's front end, another for a name server's.

A handler is given a ``Call`` and returns the response, or ``None`` if it answers with ``Call.answer`` when it is ready,
a oneway, too, which is over then. Responses leave in the order in which they become ready. Handlers run on the event
loop and must not wait.

Errors are answered, never let out: those of this package with code 1 and their sentence, such as that of a missing or
wrong field, whatever else a handler raises with code 1 and the error's name, as RocketMQ does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from metaq.errors import MetaqError
from metaq.protocols.remoting.codes import RequestCode, ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq_broker.rocketmq.session import Call, RemotingSession, RequestAccess

_LOG: Final = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 1 << 20
"""Of a request that has JSON in its body: reading it takes the event loop up to a microsecond for each byte."""

JSON_BODIES: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.QUERY_DATA_VERSION,
    }
)
"""Such requests. A registration (103) has limits of its own, and is read in a thread."""


Handler = Callable[[Call], RemotingCommand | None]


class Dispatcher:
    """Handlers by request code. ``unknown`` gets what no other one is for; by default it answers 3."""

    def __init__(self, unknown: Handler | None = None) -> None:
        self._handlers: dict[int, Handler] = {}
        self._unknown = not_supported if unknown is None else unknown
        self._lost: list[Callable[[RemotingSession], None]] = []
        self.access: RequestAccess | None = None
        """Looks at every request before it is carried out."""

    def add(self, codes: Iterable[int], handler: Handler) -> None:
        """Have ``handler`` carry out requests with these codes.

        Raises:
            ValueError: A code has a handler already.
        """
        for code in codes:
            if code in self._handlers:
                raise ValueError(f"request {name_of(code)} has a handler already")
            self._handlers[int(code)] = handler

    def when_lost(self, listener: Callable[[RemotingSession], None]) -> None:
        """Call ``listener`` with each session whose connection is gone."""
        self._lost.append(listener)

    def carry_out(self, call: Call) -> None:
        """Have a request carried out; returns at once, whether or not it is answered yet."""
        handler = self._handlers.get(call.request.code, self._unknown)
        if len(call.request.body) > BODY_BYTES_MAX and call.request.code in JSON_BODIES:
            handler = _too_large
        try:
            call.access = self.access
            response = None if self.access is None or handler is _too_large else self.access.check(call)
            if response is None:
                response = handler(call)
        except MetaqError as error:
            response = call.request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception as error:  # a client is not to end the server, nor to wait for nothing
            fields = {"peer": call.session.client.peer, "request": name_of(call.request.code)}
            _LOG.exception("request failed", extra={"fields": fields})
            response = call.request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if response is not None:
            call.answer(response)

    def lost(self, session: RemotingSession) -> None:
        """Tell the listeners that a connection is gone."""
        for listener in self._lost:
            listener(session)


def _too_large(call: Call) -> RemotingCommand:
    name, size = name_of(call.request.code), len(call.request.body)
    remark = f"the body of {name} has {size} bytes; at most {BODY_BYTES_MAX} are allowed"
    return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)


def not_supported(call: Call) -> RemotingCommand:
    """Answer that such requests are not supported."""
    remark = f" request type {call.request.code} not supported"
    return call.request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
