"""The server of the control socket: reads requests, carries them out one after the other, answers.

Only the owner of the data folder can connect. A client costs a limited amount of memory and time, and never stops the
broker. A command in progress is completed even if its client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.operate.control.messages import (
    FAILED,
    MALFORMED,
    REFUSED,
    REQUEST_BYTES_MAX,
    Arguments,
    CommandRefused,
    ControlRequest,
    Result,
    decode_request,
    encode_refusal,
    encode_result,
)
from metaq_broker.operate.control.socket_file import listen_at, remove_socket

_LOG: Final = logging.getLogger(__name__)

Command = Callable[[Arguments], Awaitable[Result]]

CONNECTIONS_MAX: Final = 16
"""Limit on clients; further ones are refused."""

IDLE_S_MAX: Final = 30.0
"""How long a client may take to send a request, or to read its reply."""

CLOSE_S_MAX: Final = 1.0
"""How long the tasks of closed connections may take to end."""

BACKLOG: Final = 16


class ControlServer:
    """Serves ``commands`` by name on the socket in ``directory``: ``start``, then ``quiesce``, then ``close``.

    Commands that are not ``reading`` are logged.
    """

    def __init__(self, directory: Path, commands: Mapping[str, Command], reading: Collection[str] = ()) -> None:
        self._directory = directory
        self._commands, self._reading = commands, reading
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    async def start(self) -> None:
        """Accept clients.

        Raises:
            OSError: The socket cannot be created.
        """
        listener = listen_at(self._directory)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=REQUEST_BYTES_MAX, backlog=BACKLOG
        )

    async def quiesce(self, patience_s: float) -> None:
        """Accept no more clients and commands, and wait for commands in progress, at most ``patience_s``.

        The socket's file is removed now, while the folder is locked: later it may be another broker's.
        """
        self._stopping = True
        if self._server is not None:
            self._server.close()
            remove_socket(self._directory)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience_s)

    async def close(self) -> None:
        """Close all connections; a client that waits takes this for the end of the broker."""
        for writer in list(self._writers):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None  # each connection has a task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if len(self._writers) > CONNECTIONS_MAX:
                refused = CommandRefused(REFUSED, f"{CONNECTIONS_MAX} control clients are connected, no more are taken")
                await self._send(writer, encode_refusal(refused))
                return
            while (line := await self._next_line(reader, writer)) is not None:
                await self._send(writer, await self._answer(line))
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _next_line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Return the next request; ``None`` at the end."""
        try:
            line = await self._read_line(reader)
        except ValueError:
            refused = CommandRefused(MALFORMED, f"the request is longer than {REQUEST_BYTES_MAX} bytes")
            await self._send(writer, encode_refusal(refused))
            return None
        return line if line.endswith(b"\n") else None

    async def _read_line(self, reader: asyncio.StreamReader) -> bytes:
        while True:
            try:
                return await asyncio.wait_for(reader.readline(), IDLE_S_MAX)
            except TimeoutError:
                if not self._stopping:  # a client that waits for the broker's end may be silent
                    raise

    async def _send(self, writer: asyncio.StreamWriter, reply: bytes) -> None:
        writer.write(reply)
        await asyncio.wait_for(writer.drain(), IDLE_S_MAX)

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = decode_request(line)
            if self._stopping:
                raise CommandRefused(REFUSED, "the broker is stopping")
            return encode_result(await self._carry_out(request))
        except CommandRefused as refused:
            return encode_refusal(refused)

    async def _carry_out(self, request: ControlRequest) -> Result:
        command = self._commands.get(request.command)
        if command is None:
            known = ", ".join(sorted(self._commands))
            raise CommandRefused(MALFORMED, f"unknown command {request.command[:80]!r}; known: {known}")
        if request.command not in self._reading:
            fields = {
                "command": request.command,
                **{f"argument_{key}": value for key, value in request.arguments.items()},
            }
            _LOG.info("operator's command", extra={"fields": fields})
        self._running += 1
        self._idle.clear()
        try:
            return await command(Arguments(request.arguments))
        except MaintenanceRefused as refused:
            raise CommandRefused(REFUSED, str(refused)) from refused
        except CommandRefused:
            raise
        except Exception as error:
            _LOG.exception("bug in a control command", extra={"fields": {"command": request.command}})
            raise CommandRefused(FAILED, f"{type(error).__name__}: {error}; the broker's log says more") from error
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
