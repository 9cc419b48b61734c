"""The name server's port: attackers on real connections, and an honest client that must be served."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.fuzz.attacker import Answers, AnyPhrase, Attacker, FuzzFinding
from faults.remoting_fuzz.frames import Frames, Phrase
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.command import request
from metaq.protocols.remoting.frames import FrameDecoder
from metaq.protocols.remoting.headers.routes import GetKVConfig, GetRouteInfoByTopic, PutKVConfig

MIB: Final = 1 << 20
MEMORY_BYTES_MAX: Final = 300 * MIB
WATCH_S: Final = 0.2
HONEST_TIMEOUT_S: Final = 15.0
_COMPLAINTS: Final = re.compile(r" (ERROR|CRITICAL) |Traceback|request failed|never (awaited|retrieved)")


class NameServerProcess:
    """A name server with low limits, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "namesrv.log"
        folder.mkdir(parents=True)
        lines = {
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": folder / "data" / "kvConfig.json",
            "maxFrameBytes": 1 << 20,
            "maxBufferedBytes": 32 << 20,
            "maxConnections": 50,
            "maxBrokers": 200,
            "maxTopicQueues": 5000,
            "maxKvConfigBytes": 256 << 10,
        }
        self._file = folder / "namesrv.properties"
        self._file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Address:
        command = [sys.executable, "-m", "metaq_broker.rocketmq.nameserver", "start", "-c", str(self._file)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " ready on " not in line:
            raise FuzzFinding(f"the name server does not start: {self.log.read_text()[-2000:]}")
        return Address.parse(line.rsplit(" ", 1)[1])

    def check(self) -> int:
        """Return the resident memory of the process.

        Raises:
            FuzzFinding: It has ended, uses too much memory, or has logged an error.
        """
        assert self.process is not None
        if self.process.poll() is not None:
            raise FuzzFinding(f"the name server has ended: {self.log.read_text(errors='replace')[-3000:]}")
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        resident = int(match[1]) << 10 if match else 0
        if resident > MEMORY_BYTES_MAX:
            raise FuzzFinding(f"the name server holds {resident} bytes, more than {MEMORY_BYTES_MAX}")
        return resident

    def complaints(self) -> list[str]:
        """Return the lines of its log that report bugs."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if _COMPLAINTS.search(line)]

    def kill(self) -> None:
        """End the process, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


class NameServerAttacker(Attacker):
    """An attacker of a name server's port."""

    def __init__(self, seed: str, address: Address) -> None:
        super().__init__(seed, address, "name server")
        self._frames = Frames(self._random)

    def _proper(self) -> Phrase:
        return self._frames.proper()

    def _daring(self, edge_chance: float) -> Phrase:
        return self._frames.daring(edge_chance)

    def _altered(self, data: bytes) -> bytes:
        return self._frames.altered(data)

    def _decoder(self) -> Answers:
        return _RemotingAnswers()

    def _check_answers(self, phrases: Sequence[AnyPhrase], got: Sequence[int | None]) -> None:
        by_number = sorted(phrases, key=lambda phrase: phrase.opaque or 0)  # answers may be in any order
        super()._check_answers(by_number, sorted(got, key=lambda opaque: opaque or 0))


class _RemotingAnswers:
    def __init__(self) -> None:
        self._decoder = FrameDecoder(64 << 20)

    @property
    def pending_bytes(self) -> int:
        return self._decoder.pending_bytes

    def receive(self, chunk: bytes) -> list[int | None]:
        return [command.opaque for command in self._decoder.receive(chunk)]


class Honest:
    """A client that stores, reads and asks for routes, and must be served at all times."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.client = RemotingClient(timeouts=Timeouts(5.0, HONEST_TIMEOUT_S))
        self.calls, self.slowest_s = 0, 0.0
        self.complaint: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop``; a complaint stops the whole run."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._once(self.calls)
            except (MetaqError, AssertionError) as error:
                self.complaint = f"the honest client was not served: {error}"
                stop.set()
            self.calls += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _once(self, number: int) -> None:
        pair = {"namespace": "honest", "key": "key"}
        put = self.client.call(self._address, request(PutKVConfig.CODE, {**pair, "value": str(number)}))
        assert put.code == 0, put
        got = self.client.call(self._address, request(GetKVConfig.CODE, pair))
        assert got.ext.get("value") == str(number), got
        route = self.client.call(self._address, request(GetRouteInfoByTopic.CODE, {"topic": "none"}))
        assert route.code == 17, route


def fuzz_name_server(seed: int, frames: int, attackers: int, base: Path) -> str:
    """Fuzz a name server process; return a summary sentence.

    Raises:
        FuzzFinding: The folder is kept, with the bytes of the last conversations.
    """
    server = NameServerProcess(base / f"name-server-{seed}")
    began, stop, memory = time.monotonic(), threading.Event(), 0
    try:
        address = server.start()
        running = [NameServerAttacker(f"{seed}.{number}", address) for number in range(attackers)]
        honest = Honest(address)
        share = -(-frames // attackers)
        threads = [threading.Thread(target=each.run, args=(share, stop), daemon=True) for each in running]
        witness = threading.Thread(target=honest.run, args=(stop,), daemon=True)
        for thread in (*threads, witness):
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and not stop.wait(WATCH_S):
                memory = max(memory, server.check())
        finally:
            stop.set()
            for thread in (*threads, witness):
                thread.join(60)
            honest.client.close()
            _keep(server.folder, running)
        _conclude(server, [*(each.finding for each in running), honest.complaint])
    finally:
        server.kill()
    shutil.rmtree(server.folder)
    sent, answers = (sum(getattr(each, what) for each in running) for what in ("sent_phrases", "answers"))
    return (
        f"name server: {sent:,} frames in {time.monotonic() - began:.0f} s, {answers:,} answers; "
        f"{honest.calls:,} honest calls, slowest {honest.slowest_s:.2f} s; memory at most {memory / MIB:.0f} MiB"
    )


def _conclude(server: NameServerProcess, findings: Sequence[str | None]) -> None:
    if any(findings):
        raise FuzzFinding("; ".join(finding for finding in findings if finding))
    server.check()
    if complaints := server.complaints():
        raise FuzzFinding(f"in the name server's log: {complaints[:5]}")
    server.kill()
    server.start()  # its file can be read


def _keep(folder: Path, attackers: Sequence[Attacker]) -> None:
    for attacker in attackers:
        for number, data in enumerate(attacker.recent):
            (folder / f"said-{attacker.seed}-{number:02}.bin").write_bytes(data)
