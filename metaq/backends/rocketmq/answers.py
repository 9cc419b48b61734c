"""Interprets a server's response: its fields, or why the request was refused.

A session reads its own responses. ``Answers`` reads responses of a shared connection.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused, is_access_refusal
from metaq.errors import FieldError, ProtocolError
from metaq.model import Address
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import (
    DeleteTopicInBroker,
    UpdateAndCreateTopic,
    UpdateBrokerConfig,
)
from metaq.protocols.remoting.headers.fields import Response
from metaq.protocols.remoting.headers.sends import SEND_CODES

NEEDED_TO_READ: Final = "SUB and GET on the topic and SUB on the group"
NEEDED_TO_SEND: Final = "PUB on the topic"
NEEDED_TO_ADMINISTER: Final = "the permissions of an administrator"

_ADMINISTRATION: Final = frozenset({UpdateAndCreateTopic.CODE, DeleteTopicInBroker.CODE, UpdateBrokerConfig.CODE})
_TEXT_LENGTH_MAX: Final = 500
_END_LENGTH: Final = 150
"""Characters of the end of a long text that are kept: it says what became of the request."""

R = TypeVar("R", bound=Response)


class AnswerReader(Protocol):
    """Reads responses and names the server in errors."""

    def refusal(self, response: RemotingCommand, command: RemotingCommand, action: str) -> RequestRefused: ...

    def read(self, response: RemotingCommand, kind: type[R]) -> R: ...

    def protocol_error(self, what: str) -> ProtocolError: ...


class Answers:
    """Reads responses of the server at ``address``. Closes nothing."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def accepted(self, response: RemotingCommand, command: RemotingCommand, action: str) -> RemotingCommand:
        """Return ``response`` if its code is 0.

        Raises:
            RequestRefused, AccessDenied: Any other code.
        """
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, command, action)
        return response

    def refusal(self, response: RemotingCommand, command: RemotingCommand, action: str) -> RequestRefused:
        return refusal_of(self.address, response, command, action)

    def read(self, response: RemotingCommand, kind: type[R]) -> R:
        """Parse the fields of ``response``.

        Raises:
            ProtocolError: A field is missing or not valid.
        """
        try:
            return kind.from_ext(response.ext)
        except FieldError as error:
            raise self.protocol_error(f"an answer in which {error}") from None

    def protocol_error(self, what: str) -> ProtocolError:
        return ProtocolError(what, address=self.address)


def refusal_of(address: Address, response: RemotingCommand, command: RemotingCommand, action: str) -> RequestRefused:
    """Return the error for an unexpected response of the server at ``address``."""
    text = one_line(response.remark)
    if is_access_refusal(response.code, text):
        return AccessDenied(address, action, response.code, text, _needed(command.code, text))
    return RequestRefused(address, action, response.code, text)


def _needed(code: int, text: str) -> str:
    if code in _ADMINISTRATION or "admin permission" in text:  # which requests need it depends on the server
        return NEEDED_TO_ADMINISTER
    return NEEDED_TO_SEND if code in SEND_CODES else NEEDED_TO_READ


def one_line(remark: str | None) -> str:
    """Return a server's text without line breaks and links. Of a long one, the middle is left out."""
    lines = [line.strip() for line in (remark or "").splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith("See http"))
    if len(text) <= _TEXT_LENGTH_MAX:
        return text
    return f"{text[: _TEXT_LENGTH_MAX - _END_LENGTH]} ... {text[-_END_LENGTH:]}"
