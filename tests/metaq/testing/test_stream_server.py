"""A server that stops at any moment leaves no connection open."""

from __future__ import annotations

import gc
import socket
from contextlib import suppress

import pytest

from metaq.testing.memory_server import MemoryServer
from metaq.testing.rocketmq_server import ScriptedCluster

CONNECTIONS = 3


@pytest.mark.parametrize("kind", [MemoryServer, ScriptedCluster])
def test_connections_that_are_being_accepted_are_closed(kind: type[MemoryServer | ScriptedCluster]) -> None:
    for _ in range(10):
        with kind() as server:
            address = server.address if isinstance(server, MemoryServer) else server.broker().address()
            peers = [socket.create_connection((address.host, address.port)) for _ in range(CONNECTIONS)]
        for peer in peers:
            with peer, suppress(ConnectionResetError):
                peer.settimeout(60)
                assert peer.recv(1) == b""
    gc.collect()  # a socket that is left open is an error
