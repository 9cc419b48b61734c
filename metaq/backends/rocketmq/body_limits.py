"""The size limit of a message. The broker is asked for it if a body exceeds the default limit.

The limit applies to the body as it is sent, compressed or not, and to the whole body of a batch. A broker's own limit
is ``maxMessageSize``; it answers larger bodies with code 13.
"""

from __future__ import annotations

import re
from typing import Final

from metaq.backends.rocketmq.errors import AccessDenied, RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.model import Address
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import GetBrokerConfig

BODY_BYTES_MAX: Final = 4 << 20
"""Largest body, and largest batch, that a broker accepts by default."""

UNTOLD_BYTES_MAX: Final = (16 << 20) - (64 << 10)
"""Largest body that is sent to a server that does not report its limit, such as a proxy. Servers close a connection
that sends a frame above 16 MiB.
"""

_LIMIT: Final = re.compile(rb"^\s*maxMessageSize\s*[=:]\s*([0-9]{1,18})\s*$", re.MULTILINE)


def body_bytes_max(pool: SessionPool, broker_name: str, address: Address) -> int:
    """Return the largest body that the broker at ``address`` accepts.

    Raises:
        ConnectionFailed, DeadlineExceeded, ProtocolError: It could not be asked.
    """
    command = to_request(GetBrokerConfig(), broker_name=broker_name)
    with pool.lease(address) as session:
        try:
            found = _LIMIT.search(session.ask(command, "the question how large a message may be").body)
        except (RequestRefused, AccessDenied):
            return UNTOLD_BYTES_MAX
    return UNTOLD_BYTES_MAX if found is None else int(found[1])
