"""Whether two lists of addresses have a server in common."""

from __future__ import annotations

import pytest

from metaq.model import Address
from metaq.net.transport import share_server


@pytest.mark.parametrize(
    ("some", "others", "shared"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1 127.0.0.1:2", "127.0.0.1:3 localhost:2", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("no-such-name.invalid:1", "no-such-name.invalid:1", True),
        ("no-such-name.invalid:1", "127.0.0.1:1", False),
        ("127.0.0.1:1", "", False),
    ],
)
def test_they_share_one(some: str, others: str, shared: bool) -> None:
    assert share_server(map(Address.parse, some.split()), map(Address.parse, others.split())) is shared
