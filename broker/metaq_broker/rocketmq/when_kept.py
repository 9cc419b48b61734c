"""Responses that wait until a change is durable."""

from __future__ import annotations

from collections.abc import Callable

from metaq.protocols.remoting.codes import ResponseCode
from metaq_broker.log.files.errors import StateNotWritten
from metaq_broker.log.state.state_table import OnDurable
from metaq_broker.rocketmq.session import Call

NOT_SET: str = "not set any response code"
"""The remark of 4.9.7 in successful responses to administrators, for clients that check it."""


def answer_when_kept(
    call: Call, remark: str | None = None, then: Callable[[], None] | None = None, body: bytes = b""
) -> OnDurable:
    """Return a callback that answers ``call`` when a change of the state is durable: with 0, ``remark`` and ``body``.

    While the state cannot be written, as on a full disk, it answers with 14, after which clients try again; other
    failures are 1. ``then`` runs before a successful response.
    """

    def kept(failure: Exception | None) -> None:
        if failure is not None:
            is_temporary = isinstance(failure, StateNotWritten)
            code = ResponseCode.SERVICE_NOT_AVAILABLE if is_temporary else ResponseCode.SYSTEM_ERROR
            call.answer(call.request.reply(code, remark=str(failure)))
            return
        if then is not None:
            then()
        call.answer(call.request.reply(body=body, remark=remark))

    return kept
