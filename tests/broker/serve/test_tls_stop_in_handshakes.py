"""A broker that is stopped while TLS handshakes are under way: within the promised time, and nothing acknowledged is
lost."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S
from fix_tls import TIMEOUTS, Certificates, launch_with, tls_session

from metaq import RocketMQ
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.model import Address, Message, Partition
from metaq.net.tls import TlsSettings, TlsTransport
from metaq.net.transport import Timeouts

pytestmark = [pytest.mark.process, pytest.mark.slow]

CLIENTS = ("metaq", "rocketmq")
TOPICS = "[topic=*]\n[rocketmq]\nenabled=true\nport=0\n"


def half_hello(address: Address, context: ssl.SSLContext, cut: int) -> socket.socket:
    """Send a part of a ClientHello, and no more."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    hello = outgoing.read()
    made = socket.create_connection((address.host, address.port), 20)
    made.sendall(hello[: cut % len(hello)])
    return made


def whole_hello(address: Address, context: ssl.SSLContext) -> socket.socket:
    """Send a ClientHello, and never read the answer."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    made = socket.create_connection((address.host, address.port), 20)
    made.sendall(outgoing.read())
    return made


@pytest.mark.parametrize("kind", CLIENTS)
def test_handshakes_that_never_end_do_not_hold_up_the_stop(
    kind: str, tmp_path: Path, certificates: Certificates
) -> None:
    trusting = TlsSettings(certificates.ca_file)
    forever = "tlsHandshakeTimeout=600000\n"  # by itself, none of them ends while the stop waits
    broker = launch_with(tmp_path, certificates.server_keys + forever, TOPICS)
    address = broker.address if kind == "metaq" else broker.rocketmq_address
    chance = random.Random(5)
    held = [half_hello(address, trusting.context(), chance.randrange(1, 400)) for _ in range(30)]
    held += [whole_hello(address, trusting.context()) for _ in range(30)]
    acknowledged: list[bytes] = []
    stopping = threading.Event()

    def produce() -> None:
        with contextlib.suppress(MetaqError), contextlib.ExitStack() as stack:
            if kind == "metaq":
                session = tls_session(broker, trusting)
                send = lambda body: put(session, "orders", 0, Message(body))  # noqa: E731
            else:
                mq = stack.enter_context(RocketMQ(str(address), tls=trusting, timeouts=Timeouts(2.0, 2.0)))
                queue = Partition("metaq", 0)
                send = lambda body: mq.producer().send("orders", body, partition=queue)  # noqa: E731
            while True:
                body = b"message %d" % len(acknowledged)
                send(body)
                acknowledged.append(body)

    def connect() -> None:
        while not stopping.is_set():
            with contextlib.suppress(MetaqError, OSError):
                Session.connect(address, TIMEOUTS, TlsTransport(trusting)).close()

    threads = [threading.Thread(target=each, daemon=True) for each in (produce, connect, connect, connect)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + DEADLINE_S
    while len(acknowledged) < 100 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert broker.stop() == 0
    stopping.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    for each in held:
        each.close()
    log = broker.log_text()
    assert "connection closed at shutdown" not in log, "the stop has waited for nobody in vain"
    assert not [line for line in log.splitlines() if "Traceback" in line or " ERROR " in line], log
    broker.end()
    again = launch_with(tmp_path, "", TOPICS)
    client = again.client()
    reply = client.ask(b"get orders g 0 0 1048576 1\r\n")
    data = getattr(reply, "data", b"")
    assert len(acknowledged) >= 100
    for body in acknowledged:
        assert body in data
    assert again.stop() == 0
    again.end()
