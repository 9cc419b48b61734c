"""Pulls that wait at their broker for messages, over a shared client; their responses are passed to callbacks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from metaq.backends.rocketmq.answers import Answers
from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused
from metaq.backends.rocketmq.reads.pulls import Moved, NotYet, PulledQueue, PulledRecords, read_outcome
from metaq.errors import MetaqError, TlsRefused, WrongServer
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand

SUSPEND_S: Final = 15.0
"""How long a pull waits at its broker, as in Java's push consumer."""
ANSWER_S: Final = SUSPEND_S + 15.0
"""How long to wait for the response: brokers end waiting pulls every few seconds."""
MESSAGES_MAX: Final = 256
"""Messages requested by a pull. Brokers return 32 by default."""

Outcome = PulledRecords | NotYet | Moved

_LASTING: Final = (ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


def submit_pull(
    client: RemotingClient,
    address: Address,
    queue: PulledQueue,
    offset: int,
    done: Callable[[Outcome | MetaqError], None],
) -> None:
    """Send a pull of ``queue`` at ``offset`` to the broker at ``address``.

    ``done`` is called once, with the response or the error, in the receiving thread or in this one.
    """
    command = queue.pull(offset, MESSAGES_MAX, int(SUSPEND_S * 1000))

    def ended(future: Future[RemotingCommand]) -> None:
        outcome: Outcome | MetaqError
        try:
            outcome = read_outcome(Answers(address), command, future.result())
        except MetaqError as error:
            outcome = error
        done(outcome)

    client.submit(address, command, ANSWER_S).add_done_callback(ended)


def is_lasting(error: MetaqError) -> bool:
    """Whether a broker will refuse the same pull permanently."""
    return isinstance(error, AccessDenied | WrongServer | TlsRefused) or (
        isinstance(error, RequestRefused) and error.code in _LASTING
    )
