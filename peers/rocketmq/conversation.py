"""A client program as a process that gets commands: the line protocol of all programs of ``clients``.

A line is an event or a command, then ``key=value`` fields, with tabs between them. Values have no tab and no line end.

    to the program                                from the program
    (arguments) nameServers role group topic ...  ready
    send topic body [tag key property delay       sent id queue offset place, or failed reason
         order state then]
    send topic bodies=one,two ...  (one batch)
    send topic body wait [...]     (a request)    replied tag property body, or failed reason
    close                                         closed
                                                  message queue offset tag key property times body
                                                  checked body  (the broker asked for a transaction's state)
                                                  answered status, or unanswered reason  (its reply to a request)

Roles: ``producer``, ``transactions``, ``push``, ``ordered`` (a push consumer that takes each queue in order), ``lite``.
``order`` is a number; sends with the same one go to the same queue. ``state`` and ``then`` are the answers of a
transaction at once and when it is checked: commit, rollback or unknown. A consumer refuses a body that begins with
"fail".
``wait`` is how many milliseconds a request waits. A push consumer with ``replies=yes`` replies to bodies that do not
begin with "silent".
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from peers.rocketmq.clients import Client

DEADLINE_S: Final = 60.0
CLOSE_DEADLINE_S: Final = 30.0
LOG_TAIL: Final = 2000


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a program. Fields that its client does not report are empty."""

    kind: str
    fields: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.fields[key]


class Conversation:
    """A running program. Use it as a context manager: the process ends with the block."""

    def __init__(self, client: Client, name_servers: str, folder: Path, **arguments: object) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._log = folder / f"{client.name}-{time.monotonic_ns()}.log"
        self._name = f"{client.name} {arguments.get('role')}"
        command = client.command(name_servers, **arguments)
        # The clients keep logs and offsets below the home folder.
        environment = {**os.environ, **client.environment, "HOME": str(folder), "JAVA_TOOL_OPTIONS": ""}
        if command[0] == "java":
            command.insert(1, f"-Duser.home={folder}")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                _there(pipe).close()

    def ready(self) -> Self:
        """Wait until it has started."""
        self.wait_for(lambda: self.of("ready"), "ready")
        return self

    def of(self, kind: str) -> list[Event]:
        """Return the events of a kind so far."""
        with self._changed:
            return [event for event in self.events if event.kind == kind]

    def bodies(self) -> list[str]:
        """Return the bodies of the messages so far, in the order of their arrival."""
        return [event["body"] for event in self.of("message")]

    def send(self, topic: str, body: str, **fields: object) -> Event:
        """Send a message and return its event ``sent``.

        Raises:
            RuntimeError: It failed, with the client's reason.
        """
        return self._send({"topic": topic, "body": body, **fields})

    def request(self, topic: str, body: str, wait_ms: int, **fields: object) -> Event:
        """Send a request and return its reply: an event ``replied``.

        Raises:
            RuntimeError: There is none in time, with the client's reason.
        """
        return self._send({"topic": topic, "body": body, "wait": wait_ms, **fields})

    def send_batch(self, topic: str, *bodies: str, **fields: object) -> Event:
        """Send several messages in one request; as ``send``."""
        return self._send({"topic": topic, "bodies": ",".join(bodies), **fields})

    def close(self) -> None:
        """Let it close its client, and wait."""
        self._say("close")
        self.wait_for(lambda: self.of("closed"), "closed", CLOSE_DEADLINE_S)
        self._process.wait(CLOSE_DEADLINE_S)

    def wait_for(self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until the condition holds; it is checked after each event, and from time to time.

        Raises:
            RuntimeError: It does not hold in time, or the program ended.
        """
        end = time.monotonic() + deadline_s
        with self._changed:
            while not condition():
                ended = not self._reader.is_alive()
                if ended or time.monotonic() > end:
                    raise RuntimeError(self._complaint("ended" if ended else f"waited {deadline_s:g} s", what))
                self._changed.wait(0.1)

    def _send(self, fields: Mapping[str, object]) -> Event:
        before = len(self._answers())
        self._say("send", **fields)
        self.wait_for(lambda: len(self._answers()) > before, f"an answer to {fields}")
        answer = self._answers()[before]
        if answer.kind == "failed":
            raise RuntimeError(answer["reason"])
        return answer

    def _answers(self) -> list[Event]:
        return [event for event in self.events if event.kind in ("sent", "replied", "failed")]

    def _say(self, command: str, **fields: object) -> None:
        stdin = _there(self._process.stdin)
        print(command, *(f"{key}={value}" for key, value in fields.items()), sep="\t", file=stdin, flush=True)

    def _read(self) -> None:
        for line in _there(self._process.stdout):
            kind, *fields = line.rstrip("\n").split("\t")
            event = Event(kind, dict(field.partition("=")[::2] for field in fields))
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _complaint(self, what: str, wanted: str) -> str:
        log = self._log.read_text(errors="replace")[-LOG_TAIL:]
        return f"{self._name}: {what}, expected {wanted}; the last events: {self.events[-20:]}; its log: {log}"


def _there(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
