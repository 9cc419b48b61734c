"""What RocketMQ 4.9.7's name server was asked and answered, replayed against ours over real sockets.

Each of the 171 recorded steps matches, but for those of ``OF_ROUTES``, and for a field of RocketMQ 5 in routes. What
varies from run to run is not compared: see tests/golden/rocketmq/README.md.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from examples import in_one_test
from local_servers import RunningNameServer, running_name_server
from recorded_differences import OF_FIELDS, OF_ROUTES
from recordings import content, lines

from metaq.protocols.remoting.bodies.json_text import load_json
from metaq.protocols.remoting.command import Codec, RemotingCommand, request
from metaq.protocols.remoting.frames import FrameDecoder, encode

STEPS = lines("ns_routes.jsonl")[1:]


class Connection:
    """One recorded connection."""

    def __init__(self, server: RunningNameServer) -> None:
        self.socket = socket.create_connection((server.address.host, server.address.port), 20)
        self.decoder = FrameDecoder()
        self.arrived: list[RemotingCommand] = []
        self.closed = False
        self.peer = ":".join(map(str, self.socket.getsockname()[:2]))

    def receive(self, count: int) -> list[RemotingCommand]:
        """The next ``count`` replies, fewer if the server closes the connection."""
        while len(self.arrived) < count and not self.closed:
            data = self.socket.recv(1 << 16)
            self.closed = not data
            if not data.startswith(b"HTTP/1.1 400 "):  # the original closes without an answer
                self.arrived += self.decoder.receive(data)
        replies, self.arrived = self.arrived[:count], self.arrived[count:]
        return replies

    def nothing_more(self) -> None:
        """Check that everything was read: the next reply is that to a question of our own."""
        self.socket.sendall(encode(request(304, opaque=-77)))
        assert [reply.opaque for reply in self.receive(1)] == [-77]

    def is_closed(self) -> bool:
        """Whether the server closes it without another reply."""
        return self.receive(1) == [] and self.closed


class Replay:
    """All steps share one server, as they did when they were recorded."""

    def __init__(self, server: RunningNameServer) -> None:
        self.server = server
        self.connections: dict[str, Connection] = {}

    def run(self, line: dict[str, Any]) -> None:
        """Take one step and compare."""
        step = line["step"]
        if step.get("op") == "sleep":
            return  # what was waited for then is waited for by ``close``
        if step.get("op") == "close":
            self.close(step["conn"])
            return
        connection = self.connections.get(step["conn"])
        if connection is None or connection.closed:
            connection = self.connections[step["conn"]] = self.connect()
        pieces = step["bytes"] if step.get("op") == "raw" else [line["request"]["frame"]]
        for piece in pieces:
            connection.socket.sendall(content(piece))
        self.check(line, connection)

    def connect(self) -> Connection:
        """Open a connection and wait until the server knows: half a frame on it has no reply that would tell."""
        connection = Connection(self.server)
        self.server.wait_for(lambda: self.is_known(connection.peer))
        return connection

    def is_known(self, peer: str) -> bool:
        """Whether the server has a session for the connection from this address."""
        return any(session.client.peer == peer for session in self.server.server._remoting.sessions)

    def check(self, line: dict[str, Any], connection: Connection) -> None:
        """Compare what comes with what was recorded, or with the difference."""
        code, why = OF_ROUTES.get(line["n"], (None, None))
        if code is not None:
            (reply,) = connection.receive(1)
            assert reply.code == code
            assert reply.remark or reply.code == 0
        elif why is not None or line.get("closed"):
            assert connection.is_closed()
            connection.socket.close()
        elif line["replies"]:
            for reply, recorded in zip(connection.receive(len(line["replies"])), line["replies"], strict=True):
                compare(reply, recorded, line)
        elif "half a frame" not in line["step"]["label"]:
            connection.nothing_more()

    def close(self, name: str) -> None:
        """Close a connection and wait until the server knows."""
        connection = self.connections.pop(name)
        peer = connection.peer
        connection.socket.close()
        self.server.wait_for(lambda: not self.is_known(peer))

    def end(self) -> None:
        """Close everything."""
        for connection in self.connections.values():
            connection.socket.close()


def compare(reply: RemotingCommand, recorded: dict[str, Any], line: dict[str, Any]) -> None:
    step, header = line["step"], recorded["header"]
    vary = set(step.get("vary", ()))
    assert reply.is_response
    assert reply.code == header["code"], reply.remark
    assert reply.codec is (Codec.BINARY if recorded["codec"] == "BIN" else Codec.JSON)
    if "opaque" not in vary:
        assert reply.opaque == header["opaque"]
    if step.get("compare") == "code":
        return
    assert without(dict(reply.ext), vary) == without(header.get("extFields") or {}, vary)
    if recorded["bodyLength"] == 0:
        assert reply.body == b""
        return
    expected = with_acting_master(without(recorded["json"], vary))
    assert ordered(without(load_json(reply.body, "reply"), vary)) == ordered(expected)
    assert is_standard(reply.body) == ("text" not in recorded)


def without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def with_acting_master(value: Any) -> Any:
    """The same as RocketMQ 5 sends it: clients written in Rust require the field of every broker."""
    if isinstance(value, dict):
        more = dict.fromkeys(OF_FIELDS["ns_routes.jsonl"], False) if "brokerAddrs" in value else {}
        return {name: with_acting_master(each) for name, each in value.items()} | more
    if isinstance(value, list):
        return [with_acting_master(each) for each in value]
    return value


def ordered(value: Any) -> Any:
    """The same with every list sorted: their order is that of a hash table in Java."""
    if isinstance(value, dict):
        return {name: ordered(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(map(ordered, value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


def is_standard(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    with running_name_server(tmp_path_factory.mktemp("namesrv")) as server:
        made = Replay(server)
        yield made
        made.end()


def test_the_recording_is_whole() -> None:
    assert [line["n"] for line in STEPS] == list(range(1, 172))
    assert OF_ROUTES.keys() <= {line["n"] for line in STEPS}


@in_one_test("line", STEPS)
def test_step(replay: Replay, line: dict[str, Any]) -> None:
    replay.run(line)
