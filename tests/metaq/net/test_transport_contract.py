"""What every transport promises: the scripted one and real TCP pass the same tests."""

from __future__ import annotations

import errno
import gc
import select
import socket
import struct
import time
import warnings
from collections.abc import Callable, Sequence

import pytest
from fix_client import LoopbackPeer

from metaq.errors import ConnectionFailed, DeadlineExceeded
from metaq.model import Address
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import TCP, Stream, Timeouts, open_socket
from metaq.testing.scripted import Disconnect, Expect, Refuse, Say, ScriptedTransport, Step

Play = Callable[..., Stream]


@pytest.fixture(params=["scripted", "tcp"])
def play(request: pytest.FixtureRequest) -> Play:
    """``play(step, ...)`` connects to a peer with that script."""
    if request.param == "scripted":
        return lambda *script: ScriptedTransport([script]).connect_tcp(Address("127.0.0.1", 8123), 5)
    loopback = request.getfixturevalue("loopback")
    return lambda *script: TCP.connect_tcp(loopback(script).address, 5)


def receive(stream: Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = stream.recv(count - len(data), 5)
        assert chunk, f"ended after {data!r}"
        data += chunk
    return data


def wait_readable(stream: Stream) -> None:
    end = time.monotonic() + 10
    while not stream.readable():
        assert time.monotonic() < end


def test_bytes_go_both_ways_in_any_chunks(play: Play) -> None:
    stream = play(Expect(b"hello"), Say(b"world"), Expect(b"again"), Say(b"and again", chunk_bytes=1))
    stream.send(b"he", 5)
    stream.send(b"llo", 5)
    assert receive(stream, 5) == b"world"
    stream.send(b"again", 5)
    assert receive(stream, 9) == b"and again"
    stream.close()


def test_what_is_sent_with_more_to_follow_arrives_with_that(play: Play) -> None:
    body = bytes(range(256)) * 4096
    stream = play(Expect(b"head" + body), Say(b"ok"))
    stream.send(b"head", 5, more=True)
    stream.send(memoryview(bytearray(body)), 5)
    assert receive(stream, 2) == b"ok"
    stream.close()


def test_recv_returns_no_more_than_asked_and_keeps_the_rest(play: Play) -> None:
    stream = play(Say(b"abcdef"))
    assert receive(stream, 1) == b"a"
    assert len(stream.recv(2, 5)) <= 2
    stream.close()


def test_bytes_are_received_into_a_buffer_and_no_further(play: Play) -> None:
    stream, buffer = play(Say(b"abcdef"), Disconnect()), bytearray(b"......")
    filled = 0
    while filled < 4:
        filled += stream.recv_into(memoryview(buffer)[filled:4], 5)
    assert bytes(buffer) == b"abcd.."
    assert receive(stream, 2) == b"ef"
    assert stream.recv_into(memoryview(buffer), 5) == 0
    stream.close()


def test_a_megabyte_arrives_whole(play: Play) -> None:
    data = bytes(range(256)) * 4096
    stream = play(Expect(data), Say(data))
    stream.send(data, 5)
    assert receive(stream, len(data)) == data
    stream.close()


def test_the_end_is_empty_bytes_as_often_as_asked(play: Play) -> None:
    stream = play(Say(b"bye"), Disconnect())
    assert receive(stream, 3) == b"bye"
    assert [stream.recv(10, 5), stream.recv(10, 5)] == [b"", b""]
    stream.close()


def test_silence_is_a_missed_deadline_that_names_the_peer(play: Play) -> None:
    stream = play(Expect(b"never sent"))
    with pytest.raises(DeadlineExceeded, match=r"^broker 127\.0\.0\.1:\d+: no answer to receive within 0\.05 s$"):
        stream.recv(10, 0.05)
    stream.close()


def test_readable_distinguishes_bytes_and_the_end_from_silence(play: Play) -> None:
    stream = play(Expect(b"go"), Say(b"x"), Expect(b"on"), Disconnect())
    assert not stream.readable()
    stream.send(b"go", 5)
    wait_readable(stream)
    assert receive(stream, 1) == b"x"
    assert not stream.readable()
    stream.send(b"on", 5)
    wait_readable(stream)
    assert stream.recv(1, 5) == b""
    stream.close()


def test_a_closed_stream_fails_and_can_be_closed_again(play: Play) -> None:
    stream = play(Say(b"x"))
    stream.close()
    stream.close()
    with pytest.raises(ConnectionFailed, match="send failed"):
        stream.send(b"x", 5)
    with pytest.raises(ConnectionFailed, match="receive failed"):
        stream.recv(1, 5)
    assert stream.readable()


def test_sending_to_a_peer_that_hung_up_fails_sooner_or_later(play: Play) -> None:
    stream = play(Disconnect())
    assert stream.recv(1, 5) == b""

    def send_on() -> None:
        for _ in range(100):  # TCP takes the first bytes and learns of the loss by the answer
            stream.send(b"x" * 65536, 5)

    with pytest.raises(ConnectionFailed, match="check that a broker listens there"):
        send_on()
    stream.close()


@pytest.mark.parametrize("kind", ["scripted", "tcp"])
def test_nobody_listening_is_a_failed_connection(kind: str) -> None:
    script: Sequence[Step] = [Refuse()]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = Address("127.0.0.1", taken.getsockname()[1])
    transport = ScriptedTransport([script]) if kind == "scripted" else TCP
    with pytest.raises(ConnectionFailed) as failed:
        transport.connect_tcp(free, 5)
    assert str(failed.value) == (
        f"broker {free}: connect failed: Connection refused; check that a broker listens there"
    )


def test_a_name_that_no_resolver_can_be_asked_for_is_a_failed_connection() -> None:
    with pytest.raises(ConnectionFailed, match="connect failed"):
        TCP.connect_tcp(Address("a" * 300, 8123), 5)


def test_a_connection_that_ends_before_it_is_set_up_is_closed(
    loopback: Callable[[Sequence[Step]], LoopbackPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(connected: socket.socket) -> None:
        opened.append(connected)
        raise OSError(errno.EINVAL, "Invalid argument")

    opened: list[socket.socket] = []
    monkeypatch.setattr("metaq.net.transport.disable_pacing", refused)
    with pytest.raises(ConnectionFailed, match="connect failed: Invalid argument"):
        TCP.connect_tcp(loopback([]).address, 5)
    assert [each.fileno() for each in opened] == [-1]


def test_a_connection_that_is_reset_before_its_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(address: Address, timeout_s: float) -> socket.socket:
        connected = open_socket(address, timeout_s)
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        select.select([connected], [], [], 30)
        return connected

    monkeypatch.setattr("metaq.net.tls.open_socket", reset)
    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(ConnectionFailed):
            TlsTransport(TlsSettings()).connect_secured(Address(*listener.getsockname()), 30)
        gc.collect()
    assert [str(leak.message) for leak in leaks] == []


def test_the_scripted_peer_rejects_what_its_script_does_not_expect() -> None:
    stream = ScriptedTransport([[Expect(b"abc")]]).connect_tcp(Address("h", 1), 5)
    stream.send(b"a", 5)
    with pytest.raises(AssertionError, match="expected b'bc', the client sent b'x'"):
        stream.send(b"x", 5)


def test_small_packets_are_sent_at_once(loopback: Callable[[Sequence[Step]], object]) -> None:
    stream = TCP.connect_tcp(loopback([]).address, 5)  # type: ignore[attr-defined]
    assert stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # type: ignore[attr-defined]
    stream.close()


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["connect_s", "request_s"])
def test_timeouts_must_be_positive_and_finite(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        Timeouts(**{name: bad})
