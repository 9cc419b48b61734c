"""Broker processes that are forks of one process, which has imported the broker.

Most of a broker's start is Python's own and the import of its modules: half a second of CPU, and tests start a thousand
brokers. From the fork on, a broker is what ``python -m metaq_broker.cli`` runs, with arguments, environment, folder,
limits, streams and signals of its own. ``fork_broker`` is for the tests; run as a program, this file is the process
that forks. It ends with the process that started it, and so do its brokers.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

REQUEST_BYTES_MAX: Final = 1 << 17
_END_S: Final = 20.0


class ForkedBroker:
    """A broker process, as tests use a ``subprocess.Popen``. ``status`` is a pipe with its exit status, at its end."""

    def __init__(self, pid: int, arguments: Sequence[str], stdout: int, status: int) -> None:
        self.pid, self.args, self.returncode = pid, arguments, None
        self.stdout: IO[str] = os.fdopen(stdout)
        self._status = os.fdopen(status, "rb")

    returncode: int | None

    def poll(self) -> int | None:
        return self._exit_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status, negative for the signal that ended it."""
        status = self._exit_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def _exit_status(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._status, select.POLLIN)
            if poller.poll(None if timeout_s is None else timeout_s * 1000):
                with self._status:
                    self.returncode = int(self._status.read() or -signal.SIGKILL)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Forker:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, __file__, str(other.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(self, arguments: Sequence[str], stderr: IO[str], limits: Mapping[int, int]) -> ForkedBroker:
        out, stdout = os.pipe()
        ended, status = os.pipe()
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        message = json.dumps(request | {"limits": list(limits.items())}).encode()
        try:
            with self._lock:
                socket.send_fds(self._channel, [message], [stdout, stderr.fileno(), status])
                pid = int(self._channel.recv(64))
        finally:
            os.close(stdout)
            os.close(status)
        return ForkedBroker(pid, arguments, out, ended)

    def close(self) -> None:
        self._channel.close()
        self._process.wait(_END_S)


_forkers: Final[list[_Forker]] = []


def fork_broker(arguments: Sequence[str | Path], stderr: IO[str], limits: Mapping[int, int]) -> ForkedBroker:
    """Start ``metaq-broker`` with these arguments; its standard output is a pipe. ``limits`` are for ``setrlimit``."""
    if not _forkers:
        _forkers.append(_Forker())
    return _forkers[0].fork([str(each) for each in arguments], stderr, limits)


# ---- the process that forks


class _Children:
    """Brokers that run, with the pipes for their exit status."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}
        self.ended, wake = os.pipe2(os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)

    def add(self, pid: int, status: int) -> None:
        self._pipes[pid] = status

    def reap(self) -> None:
        """Report those that have ended."""
        os.read(self.ended, 1 << 12)
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            pipe = self._pipes.pop(pid)
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(pipe)

    def kill(self) -> None:
        for pid in self._pipes:
            os.kill(pid, signal.SIGKILL)


def _serve(channel: socket.socket) -> list[str] | None:
    """Fork until the tests end, then return ``None``; in a fork, return the arguments of its broker."""
    children = _Children()
    while True:
        ready, _, _ = select.select([channel, children.ended], [], [])
        if children.ended in ready:
            children.reap()
        if channel not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not message:
            children.kill()
            return None
        pid = os.fork()
        if pid == 0:
            return _become_broker(json.loads(message), *descriptors[:2])
        stdout, stderr, status = descriptors
        os.close(stdout)
        os.close(stderr)
        children.add(pid, status)
        channel.send(str(pid).encode())


def _become_broker(request: dict[str, Any], stdout: int, stderr: int) -> list[str]:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for kind, most in request["limits"]:
        resource.setrlimit(kind, (most, most))
    arguments: list[str] = request["arguments"]
    return arguments


def _main(descriptor: int) -> int:
    del sys.path[0]  # the folder of this file
    import metaq_broker.operate.registration.registration
    import metaq_broker.replication.driver.zookeeper_store
    import metaq_broker.rocketmq.front_end  # noqa: F401 - loaded for the forks
    from metaq_broker.cli import main

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    channel = socket.socket(fileno=descriptor)
    arguments = _serve(channel)
    if arguments is None:
        return 0
    channel.detach()
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
