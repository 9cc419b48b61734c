"""The client against faulty servers: altered, late, repeated, unsolicited, incomplete and endless responses.

Every call must end, with a response or an error of this package, soon after its deadline; calls of the same client to
an honest server must succeed all the time; and closing the client must end its threads.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from contextlib import suppress
from random import Random
from typing import Final

from faults.fuzz.attacker import FuzzFinding
from faults.remoting_fuzz.frames import Frames
from metaq.errors import MetaqError, ProtocolError
from metaq.model import Address
from metaq.net.remoting_client import ClientSettings, RemotingClient
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.command import RemotingCommand, request
from metaq.protocols.remoting.frames import FrameDecoder, encode

CALL_TIMEOUT_S: Final = 0.3
MARGIN_S: Final = 10.0
GROWTH_BYTES_MAX: Final = 300 << 20
FRAME_BYTES_MAX: Final = 1 << 20
BURST_MAX: Final = 60


class FaultyServer:
    """A server on a free port with a thread for each connection. ``honest``: it answers correctly."""

    def __init__(self, seed: str, honest: bool = False) -> None:
        self._seed, self._honest = seed, honest
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.sent = 0
        self._count = threading.Lock()
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections += 1
                random = Random(f"{self._seed}.{self._connections}")
                threading.Thread(target=self._serve, args=(connection, random), daemon=True).start()

    def _serve(self, connection: socket.socket, random: Random) -> None:
        decoder, frames = FrameDecoder(), Frames(random)
        with connection, suppress(OSError, ProtocolError):
            connection.settimeout(60)
            while data := connection.recv(1 << 16):
                for command in decoder.receive(data):
                    if command.is_response or command.is_oneway:
                        continue
                    answers = [encode(command.reply())] if self._honest else self._lies(command, frames, random)
                    with self._count:
                        self.sent += len(answers)
                    connection.sendall(b"".join(answers))
                    if not self._honest and random.random() < 0.02:
                        return

    def _lies(self, command: RemotingCommand, frames: Frames, random: Random) -> list[bytes]:
        """Return a burst of frames; usually the last one is the true response."""
        answers: list[bytes] = []
        for _ in range(random.randrange(BURST_MAX)):
            match random.randrange(4):
                case 0:  # a response to no request, or to an old one
                    other = RemotingCommand(0, opaque=random.randrange(-5, command.opaque + 100), flag=1)
                    answers.append(encode(other))
                case 1:  # a request by the server
                    answers.append(frames.daring(0.1).data)
                case 2:
                    answers.append(encode(command.reply(random.choice((1, 2, 17, 1500)), body=random.randbytes(50))))
                case _:
                    answers.append(encode(RemotingCommand(39, opaque=random.randrange(100), flag=2)))
        dice = random.random()
        if dice < 0.05:
            answers.append(frames.altered(encode(command.reply())))
        elif dice < 0.97:
            answers.append(encode(command.reply(0, body=b"x" * random.randrange(500))))
        return answers


def fuzz_client(seed: int, frames: int, callers: int = 4) -> str:
    """Let a client receive ``frames`` frames of a faulty server; return a summary sentence.

    Raises:
        FuzzFinding: A call did not end in time, or with a foreign error, or the honest server was not reached.
    """
    faulty_server, honest = FaultyServer(f"{seed}"), FaultyServer(f"{seed}", honest=True)
    began, before, threads_before = time.monotonic(), _peak_bytes(), threading.active_count()
    settings = ClientSettings(frame_bytes_max=FRAME_BYTES_MAX)
    client = RemotingClient(timeouts=Timeouts(5.0, CALL_TIMEOUT_S), settings=settings)
    client.register(39, lambda address, command: None)
    work = _Calls(client, faulty_server, honest.address, frames)
    threads = [threading.Thread(target=work.run, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    faulty_server.stop()
    honest.stop()
    if work.findings:
        raise FuzzFinding("; ".join(work.findings))
    if (growth := _peak_bytes() - before) > GROWTH_BYTES_MAX:
        raise FuzzFinding(f"the client's process grew by {growth} bytes, more than {GROWTH_BYTES_MAX}")
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("remoting")]
    if left:
        raise FuzzFinding(f"threads of the closed client still run: {left} ({threads_before} ran before)")
    return (
        f"client: {faulty_server.sent:,} frames in {time.monotonic() - began:.0f} s; {work.responses:,} calls "
        f"answered, {work.errors:,} ended with an error, slowest {work.slowest_s:.2f} s"
    )


class _Calls:
    """The callers' shared state."""

    def __init__(self, client: RemotingClient, faulty_server: FaultyServer, honest: Address, frames: int) -> None:
        self._client, self._faulty_server, self._honest, self._frames = client, faulty_server, honest, frames
        self.responses = self.errors = 0
        self.slowest_s = 0.0
        self.findings: list[str] = []

    def run(self) -> None:
        """Call until enough frames have arrived, or something was found."""
        while self._faulty_server.sent < self._frames and not self.findings:
            began = time.monotonic()
            try:
                self._client.call(self._faulty_server.address, request(11))
                self.responses += 1
            except MetaqError:
                self.errors += 1
            except Exception as error:
                self.findings.append(f"a call ended with {type(error).__name__}: {error}")
            took_s = time.monotonic() - began
            self.slowest_s = max(self.slowest_s, took_s)
            if took_s > CALL_TIMEOUT_S + MARGIN_S:
                self.findings.append(f"a call with a deadline of {CALL_TIMEOUT_S:g} s took {took_s:.1f} s")
            self._ask_honest()

    def _ask_honest(self) -> None:
        try:
            if self._client.call(self._honest, request(11), MARGIN_S).code != 0:
                self.findings.append("the honest server's answer was not its own")
        except MetaqError as error:
            self.findings.append(f"the honest server was not reached: {error}")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
