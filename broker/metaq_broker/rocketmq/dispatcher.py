"""Dispatches requests to handlers by code. One for a broker's front end, another for a name server's.

A handler gets a ``Call`` and returns the response, or its frame, or ``None`` if it calls ``Call.answer`` later; a
oneway ends with this call, too. Responses are sent in the order in which they become ready. Handlers run on the event
loop and must not wait.

Errors never propagate: errors of this package, such as a missing or wrong field, are answered with code 1 and their
sentence, others with code 1 and the error's name, as RocketMQ does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from metaq.errors import MetaqError
from metaq.protocols.remoting.codes import ResponseCode, name_of
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import JSON_BODIES
from metaq_broker.rocketmq.session import Call, RemotingSession, RequestAccess

_LOG: Final = logging.getLogger(__name__)

JSON_BYTES_MAX: Final = 1 << 20
"""Longest JSON body of a request: parsing takes the event loop up to a microsecond per byte."""


Handler = Callable[[Call], RemotingCommand | bytes | None]


class Dispatcher:
    """Handlers by request code. ``unknown`` gets requests without a handler; by default it answers 3."""

    def __init__(self, unknown: Handler | None = None) -> None:
        self._handlers: dict[int, Handler] = {}
        self._unknown = not_supported if unknown is None else unknown
        self._lost: list[Callable[[RemotingSession], None]] = []
        self.access: RequestAccess | None = None
        """Checks every request before it is executed."""

    def add(self, codes: Iterable[int], handler: Handler) -> None:
        """Register ``handler`` for requests with these codes.

        Raises:
            ValueError: A code has a handler already.
        """
        for code in codes:
            if code in self._handlers:
                raise ValueError(f"request {name_of(code)} has a handler already")
            self._handlers[int(code)] = handler

    def when_lost(self, listener: Callable[[RemotingSession], None]) -> None:
        """Call ``listener`` with each session whose connection is lost."""
        self._lost.append(listener)

    def carry_out(self, call: Call) -> None:
        """Execute a request; returns at once, whether or not it is answered yet."""
        handler = self._handlers.get(call.request.code, self._unknown)
        if len(call.request.body) > JSON_BYTES_MAX and call.request.code in JSON_BODIES:
            handler = _too_large
        try:
            call.access = self.access
            response: RemotingCommand | bytes | None = None
            if self.access is not None and handler is not _too_large:
                response = self.access.check(call)
            if response is None:
                response = handler(call)
        except MetaqError as error:
            response = call.request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Exception as error:  # a client must neither end the server nor wait in vain
            fields = {"peer": call.session.client.peer, "request": name_of(call.request.code)}
            _LOG.exception("request failed", extra={"fields": fields})
            response = call.request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if response is not None:
            call.answer(response)

    def lost(self, session: RemotingSession) -> None:
        """Notify the listeners of a lost connection."""
        for listener in self._lost:
            listener(session)


def _too_large(call: Call) -> RemotingCommand:
    name, size = name_of(call.request.code), len(call.request.body)
    remark = f"the body of {name} has {size} bytes; at most {JSON_BYTES_MAX} are allowed"
    return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)


def not_supported(call: Call) -> RemotingCommand:
    """Answer that such requests are not supported."""
    remark = f" request type {call.request.code} not supported"
    return call.request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
