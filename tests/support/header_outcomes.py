"""What a reader of headers makes of one."""

from __future__ import annotations

from collections.abc import Callable

from metaq.errors import ProtocolError
from metaq.protocols.remoting.command import RemotingCommand


def outcome(read: Callable[[bytes, bytes], RemotingCommand], text: str | bytes) -> RemotingCommand | str:
    """The command that ``read`` returns, or the text of its error."""
    data = text if isinstance(text, bytes) else text.encode()
    try:
        return read(data, b"body")
    except ProtocolError as error:
        return str(error)
