"""The client of the control socket: one request, one reply, every wait with a limit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from metaq.errors import MetaqError
from metaq_broker.clock import Clock
from metaq_broker.log.partitions.log_store import LOCK_NAME
from metaq_broker.operate.control.messages import REPLY_BYTES_MAX, ControlRequest, decode_reply, encode_request
from metaq_broker.operate.control.socket_file import connect_to

_CHUNK_BYTES: Final = 1 << 16


class NoBroker(MetaqError):
    """No broker answers for the data folder ``directory``; ``reason`` completes the sentence."""

    def __init__(self, directory: Path, reason: str) -> None:
        self.directory, self.reason = directory, reason
        super().__init__(directory, reason)

    def __str__(self) -> str:
        return f"{self.reason}: {self.directory}"


class NoAnswer(MetaqError):
    """The broker accepted the command ``action`` and did not answer in ``seconds``; it may still be running it."""

    def __init__(self, action: str, seconds: float) -> None:
        self.action, self.seconds = action, seconds
        super().__init__(action, seconds)

    def __str__(self) -> str:
        return f"no answer to {self.action} within {self.seconds:g} s; the broker may still be busy with it (--timeout)"


class ControlClient:
    """One connection to the broker of ``directory``. ``timeout_s`` limits each command as a whole.

    Raises:
        NoBroker: There is none.
    """

    def __init__(self, directory: Path, timeout_s: float, clock: Clock | None = None) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._clock = clock or Clock()
        try:
            self._connection = connect_to(directory, timeout_s)
        except OSError as error:
            raise NoBroker(directory, _why_not(directory, error)) from error

    def close(self) -> None:
        self._connection.close()

    def ask(self, request: ControlRequest) -> dict[str, Any]:
        """Return the result of a request.

        Raises:
            CommandRefused: The broker refused it.
            NoAnswer: It did not answer in time.
            NoBroker: The connection was lost.
        """
        try:
            self._connection.settimeout(self._timeout_s)
            self._connection.sendall(encode_request(request))
            return decode_reply(self._read_line(f"command {request.command}"))
        except TimeoutError:
            raise NoAnswer(f"command {request.command}", self._timeout_s) from None
        except OSError as error:
            raise NoBroker(self._directory, f"the connection to the broker broke ({error})") from error

    def wait_for_end(self) -> None:
        """Return when the broker has closed the connection, which means that it has stopped.

        Raises:
            NoAnswer: It did not stop in time.
        """
        self._connection.settimeout(self._timeout_s)
        try:
            while self._connection.recv(_CHUNK_BYTES):
                pass
        except TimeoutError:
            raise NoAnswer("the shutdown", self._timeout_s) from None
        except ConnectionError:
            return

    def _read_line(self, action: str) -> bytes:
        deadline = self._clock.monotonic() + self._timeout_s
        data = bytearray()
        while not data.endswith(b"\n"):
            self._connection.settimeout(max(0.001, deadline - self._clock.monotonic()))
            chunk = self._connection.recv(_CHUNK_BYTES)
            if not chunk:
                raise NoBroker(self._directory, f"the broker ended before it answered {action}")
            data += chunk
            if len(data) > REPLY_BYTES_MAX:
                raise NoBroker(self._directory, f"the answer to {action} is longer than {REPLY_BYTES_MAX} bytes")
        return bytes(data)


def _why_not(directory: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "the control socket belongs to another user; run this as the user of the broker"
    if not directory.is_dir():
        return "there is no such data folder"
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        owner = _owner(directory)
        if owner is None:
            return "no broker runs with this data folder"
        return f"a broker (process {owner}) is starting or stopping, or has no control socket, in data folder"
    return f"the control socket cannot be used ({error.strerror or error})"


def _owner(directory: Path) -> str | None:
    """Return the process that has locked the folder; ``None`` if there is none, or the system does not show it.

    Trying the lock would answer that, too, but might keep a broker from starting at this moment.
    """
    try:
        inode = os.stat(directory / LOCK_NAME).st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    found = re.search(rf"FLOCK +ADVISORY +WRITE +(\d+) +[0-9a-f]+:[0-9a-f]+:{inode} ", locks)
    return found[1] if found else None
