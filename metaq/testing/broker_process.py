"""The bundled broker in a process of its own, on free ports of this machine, for tests.

::

    with BrokerProcess(tmp_path) as broker, broker.client() as mq:
        mq.producer().send("orders", "one tea")
        broker.kill()  # SIGKILL
        broker.start()  # the same ports, the same messages

It serves clients of MetaQ at ``address`` and clients of RocketMQ at ``name_servers``. It ends when this process ends,
in any way: its standard input is a pipe from this process.
"""

from __future__ import annotations

import re
import selectors
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK
from metaq.testing.local_broker import LocalBroker
from metaq.testing.ports import free_port

if TYPE_CHECKING:
    from metaq.client.rocketmq.client import RocketMQ

DEADLINE_S: Final = 60.0
"""Longest wait for it to serve, and to stop."""

LOG_BYTES_SHOWN: Final = 2000
CHUNK_BYTES: Final = 4096

_READY: Final = re.compile(r"metaq-broker \S+ ready on (\S+), data in ")
_ROCKETMQ: Final = re.compile(r"RocketMQ clients: (\S+) is name server and broker\n")
_PROGRAM: Final = """
import os, signal, sys, threading
from metaq_broker.cli import main

def stop_with_parent():
    while os.read(0, 4096):  # not of sys.stdin: its lock, held by this thread, is a fatal error when Python ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=stop_with_parent, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""


class BrokerNotReady(MetaqError):
    """The broker did not start; ``log`` is the end of its output."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(log)

    def __str__(self) -> str:
        return f"the broker for tests did not get ready within {DEADLINE_S:g} s, it said: {self.log or 'nothing'}"


class BrokerProcess(LocalBroker):
    """A broker whose messages and log (``broker.log``) are in ``folder``; each topic has ``partitions`` partitions."""

    def __init__(self, folder: Path, partitions: int = 1) -> None:
        super().__init__()
        self.folder: Final = folder
        self.log_file: Final = folder / "broker.log"
        self._partitions = partitions
        self._address, self._rocketmq = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
        self._process: subprocess.Popen[bytes] | None = None
        self._rocketmq_clients: list[RocketMQ] = []

    @property
    def address(self) -> Address:
        """The broker's address; the port was free when this object was made."""
        return self._address

    @property
    def name_servers(self) -> str:
        """The name server list for RocketMQ's clients: name server and broker share a port."""
        return str(self._rocketmq)

    @property
    def pid(self) -> int | None:
        """The id of the process; ``None`` before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def rocketmq(self, **options: Any) -> RocketMQ:
        """Return a RocketMQ client with ``options`` of ``RocketMQ``. Closed together with the clients of ``client``.

        It has the same topics as ``client``: there is one log.
        """
        from metaq.client.rocketmq.client import RocketMQ

        self._rocketmq_clients.append(RocketMQ(self.name_servers, **options))
        return self._rocketmq_clients[-1]

    def close_clients(self) -> None:
        super().close_clients()
        clients, self._rocketmq_clients = self._rocketmq_clients, []
        for client in clients:
            client.close()

    def start(self) -> None:
        """Start the broker, unless it runs, with its previous data.

        Raises:
            BrokerNotReady: It does not serve in time, for example because its port was taken meanwhile.
        """
        if self.running:
            return
        self._release()
        ports = ["--port", str(self._address.port), "--rocketmq-port", str(self._rocketmq.port)]
        command = [sys.executable, "-c", _PROGRAM, "dev", str(self.folder / "data"), *ports]
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--partitions", str(self._partitions)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        try:
            self._address, self._rocketmq = self._announced(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(DEADLINE_S)
        self._release()

    def kill(self) -> None:
        """End the broker with ``SIGKILL``."""
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait(DEADLINE_S)
        self._release()

    def clear(self) -> None:
        """Delete topics and groups; if that fails, restart the broker with an empty folder on the same ports."""
        if not (self.running and self._is_emptied()):
            self.kill()
            shutil.rmtree(self.folder / "data", ignore_errors=True)
            self.start()

    def _is_emptied(self) -> bool:
        """Roll back prepared branches, delete all topics and forget all groups; return whether that succeeded."""
        from metaq.client.metaq import MetaQ
        from metaq.client.rocketmq.client import RocketMQ

        try:
            with MetaQ(self.cluster) as mq, RocketMQ(self.name_servers) as rocketmq:
                for prepared in mq.prepared():
                    mq.rollback(prepared.xid)
                for topic in {*mq.cluster.topics(), *rocketmq.cluster.topics()}:
                    rocketmq.cluster.delete_topic(topic)
                self._forget_groups()
                return not (mq.cluster.topics() or rocketmq.cluster.topics())
        except MetaqError:
            return False

    def _forget_groups(self) -> None:
        from metaq.backends.metaq.pool import SessionPool
        from metaq.discovery.broker_groups import BrokerGroupStore
        from metaq.discovery.fixed import FixedDirectory

        pool = SessionPool()
        try:
            store = BrokerGroupStore(FixedDirectory([self.address], pool), pool)
            for group in store.groups():
                store.forget(group)
        finally:
            pool.close()

    def _announced(self, process: subprocess.Popen[bytes]) -> tuple[Address, Address]:
        """Return the addresses in the broker's start message."""
        assert process.stdout is not None
        deadline_s, printed = SYSTEM_CLOCK.monotonic() + DEADLINE_S, ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline_s - SYSTEM_CLOCK.monotonic())):
                chunk = process.stdout.read(CHUNK_BYTES)
                printed += chunk.decode(errors="replace")
                ready, rocketmq = _READY.search(printed), _ROCKETMQ.search(printed)
                if ready is not None and rocketmq is not None:
                    return Address.parse(ready[1]), Address.parse(rocketmq[1])
                if not chunk:
                    break
        raise BrokerNotReady(self.log_file.read_text(errors="replace")[-LOG_BYTES_SHOWN:].strip())

    def _release(self) -> None:
        """Close the pipes of a process that has ended."""
        process, self._process = self._process, None
        for pipe in () if process is None else (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
