"""A ``RemotingClient`` for members of groups: brokers identify members by its connections, and send requests
on them.
"""

from __future__ import annotations

from typing import Final

from metaq.model import Address
from metaq.net.duplex import RemotingTls
from metaq.net.remoting_client import ClientSettings, RemotingClient
from metaq.net.tls import TlsSettings
from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.channel import DEFAULT_LIMITS, ChannelLimits
from metaq.protocols.remoting.command import RemotingCommand

HEARTBEAT_S: Final = 30.0
"""Interval of a member's heartbeats; brokers forget it after 120 s of silence."""


class RequestSigner:
    """Signs all requests of a client. A ``CallHook``."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def before(self, address: Address, command: RemotingCommand) -> RemotingCommand:
        return sign(command, self._credentials)

    def after(self, address: Address, command: RemotingCommand, response: RemotingCommand) -> None: ...


def member_client(
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    tls: TlsSettings | None = None,
    credentials: Credentials | None = None,
    *,
    requests_max: int = DEFAULT_LIMITS.requests_max,
    settings: ClientSettings | None = None,
) -> RemotingClient:
    """Return a client whose connections are secured and signed as a ``SessionPool``'s are.

    ``requests_max``: most requests to one broker that may wait for their answers.

    Raises:
        ValueError: A file named in ``tls`` cannot be used.
    """
    secured = None if tls is None else RemotingTls(settings=tls)
    hooks = [] if credentials is None else [RequestSigner(credentials)]
    return RemotingClient(
        timeouts=timeouts, tls=secured, limits=ChannelLimits(requests_max), hooks=hooks, settings=settings
    )
