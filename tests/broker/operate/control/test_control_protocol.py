"""The control socket without a broker: lines, arguments, limits, and clients that do not behave."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from metaq_broker.log.engine.maintenance import MaintenanceRefused
from metaq_broker.operate.control import client, socket_file
from metaq_broker.operate.control import server as control_server
from metaq_broker.operate.control.client import ControlClient, NoBroker
from metaq_broker.operate.control.messages import (
    MALFORMED,
    REQUEST_BYTES_MAX,
    Arguments,
    CommandRefused,
    ControlRequest,
    decode_reply,
    decode_request,
    encode_refusal,
    encode_request,
    encode_result,
)
from metaq_broker.operate.control.server import CONNECTIONS_MAX, ControlServer
from metaq_broker.operate.control.socket_file import SOCKET_NAME, connect_to, listen_at

# ---- lines


@pytest.mark.parametrize(
    "request_",
    [ControlRequest("status"), ControlRequest("close", {"topic": "b\udc80 ü\n", "first": 0, "last": 3, "force": True})],
)
def test_requests_survive_the_line(request_: ControlRequest) -> None:
    line = encode_request(request_)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert decode_request(line) == request_


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"status\n",
        b"\xff\xfe\n",
        b'"status"\n',
        b"[]\n",
        b"{}\n",
        b'{"command": 1}\n',
        b'{"command": "status", "arguments": []}\n',
        b'{"command": "status", "more": 1}\n',
        b"[" * 60_000 + b"\n",
        b'{"command": ' + b"9" * 60_000 + b"}\n",
    ],
)
def test_what_is_no_request(line: bytes) -> None:
    with pytest.raises(CommandRefused) as refused:
        decode_request(line)
    assert refused.value.kind == MALFORMED


def test_replies_survive_the_line() -> None:
    assert decode_reply(encode_result({"a": [1, "ü", None]})) == {"a": [1, "ü", None]}
    with pytest.raises(CommandRefused, match="no such thing") as refused:
        decode_reply(encode_refusal(CommandRefused("refused", "no such thing")))
    assert refused.value.kind == "refused"


# ---- arguments


@pytest.mark.parametrize(
    ("values", "take", "expected"),
    [
        ({"topic": "a"}, lambda each: each.text("topic"), "a"),
        ({"topic": None}, lambda each: each.optional_text("topic"), None),
        ({}, lambda each: each.optional_text("topic"), None),
        ({"n": -3}, lambda each: each.number("n"), -3),
        ({}, lambda each: each.flag("force"), False),
        ({"first": 2, "last": 4}, lambda each: list(each.indexes()), [2, 3, 4]),
        ({"first": 2}, lambda each: list(each.indexes()), [2]),
    ],
)
def test_arguments(values: dict[str, Any], take: Callable[[Arguments], Any], expected: Any) -> None:
    arguments = Arguments(values)
    assert take(arguments) == expected
    arguments.end()


@pytest.mark.parametrize(
    ("values", "take", "message"),
    [
        ({}, lambda each: each.text("topic"), "argument 'topic' is missing; expected a text"),
        ({"topic": ""}, lambda each: each.text("topic"), "argument 'topic' is ''; expected a text"),
        ({"topic": 5}, lambda each: each.text("topic"), "argument 'topic' is '5'"),
        ({"n": True}, lambda each: each.number("n"), "argument 'n' is 'True'; expected a whole number"),
        ({"n": 1.5}, lambda each: each.number("n"), "argument 'n' is '1.5'"),
        ({"n": -1}, lambda each: each.number("n", 0), "expected a whole number 0..2147483647"),
        ({"force": 1}, lambda each: each.flag("force"), "argument 'force' is '1'; expected true or false"),
        ({"first": 3, "last": 2}, lambda each: each.indexes(), "partitions 3-2: expected FIRST-LAST"),
        ({"first": 0, "last": 100_000}, lambda each: each.indexes(), "at most 100000 of them"),
        ({"x": 1}, lambda each: each.end(), "unknown argument 'x'"),
    ],
)
def test_wrong_arguments(values: dict[str, Any], take: Callable[[Arguments], Any], message: str) -> None:
    with pytest.raises(CommandRefused, match=message.replace("(", r"\(")):
        take(Arguments(values))


# ---- the file


def test_the_file_has_its_mode_from_the_first_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        monkeypatch.setattr(socket_file.os, "chmod", lambda path, mode: None)
        listener = listen_at(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / SOCKET_NAME).st_mode) == 0o600
    with pytest.raises(ConnectionRefusedError):
        connect_to(tmp_path, 1.0)  # it does not listen yet
    listener.close()


def test_the_file_has_its_mode_where_sockets_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, mode: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(socket_file.os, "fchmod", refuse)
    listen_at(tmp_path).close()
    assert stat.S_IMODE(os.stat(tmp_path / SOCKET_NAME).st_mode) == 0o600


def test_a_socket_that_is_left_over_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    listen_at(tmp_path).close()
    listen_at(tmp_path).close()
    (tmp_path / SOCKET_NAME).unlink()
    (tmp_path / SOCKET_NAME).symlink_to("somewhere")
    with pytest.raises(FileExistsError, match="is not a socket; remove it"):
        listen_at(tmp_path)


def test_a_path_of_any_length(tmp_path: Path) -> None:
    for length in (50, 90, 100, 200):
        folder = tmp_path / ("x" * length)
        folder.mkdir()
        listener = listen_at(folder)
        listener.listen()
        connect_to(folder, 1.0).close()
        listener.close()


def test_without_proc_a_long_path_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_file, "_DESCRIPTORS", "/nowhere")
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    with pytest.raises(OSError, match=r"is longer than the 10[37] bytes that a socket's path may have"):
        listen_at(folder)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied"), "the control socket belongs to another user; run this as the user"),
        (OSError(5, "Input/output error"), "the control socket cannot be used (Input/output error)"),
    ],
)
def test_why_there_is_no_connection(
    error: OSError, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path, timeout_s: float) -> socket.socket:
        raise error

    monkeypatch.setattr(client, "connect_to", refuse)
    with pytest.raises(NoBroker) as none:
        ControlClient(tmp_path, 1.0)
    assert str(none.value).startswith(sentence)


def test_a_broker_that_goes_away_in_the_middle(tmp_path: Path) -> None:
    listener = listen_at(tmp_path)
    listener.listen()
    asking = ControlClient(tmp_path, 5.0)
    served, _ = listener.accept()
    served.sendall(b'{"result":')
    served.close()
    with pytest.raises(NoBroker, match=r"the connection to the broker broke|ended before it answered"):
        asking.ask(ControlRequest("status"))
    asking.close()
    listener.close()


# ---- the server


class Harness:
    """A control server with commands that say what they got, in this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.go_on = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.finished = 0
        commands = {"echo": self.echo, "slow": self.slow, "broken": self.broken, "no": self.no, "large": self.large}
        self.server = ControlServer(directory, commands)

    async def echo(self, arguments: Arguments) -> dict[str, Any]:
        text = arguments.text("text")
        arguments.end()
        return {"text": text}

    async def slow(self, arguments: Arguments) -> dict[str, Any]:
        await self.go_on.wait()
        self.finished += 1
        return {}

    async def broken(self, arguments: Arguments) -> dict[str, Any]:
        raise RuntimeError("a defect")

    async def no(self, arguments: Arguments) -> dict[str, Any]:
        raise MaintenanceRefused("not now")

    async def large(self, arguments: Arguments) -> dict[str, Any]:
        return {"text": "x" * 5_000_000}

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.directory / SOCKET_NAME, limit=1 << 23)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, line: bytes) -> dict[str, Any]:
        reader, writer = await self.client()
        writer.write(line)
        document = json.loads(await reader.readline())
        writer.close()
        assert isinstance(document, dict)
        return document


@contextlib.asynccontextmanager
async def harness(directory: Path) -> AsyncIterator[Harness]:
    made = Harness(directory)
    await made.server.start()
    try:
        async with asyncio.timeout(60):
            yield made
    finally:
        made.go_on.set()
        await made.server.quiesce(5)
        await made.server.close()
        for writer in made.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def run(scenario: Callable[[Harness], Awaitable[None]], directory: Path) -> None:
    async def play() -> None:
        async with harness(directory) as made:
            await scenario(made)

    asyncio.run(play())


ECHO = b'{"command": "echo", "arguments": {"text": "hello"}}\n'


def test_requests_of_one_connection_are_answered_in_turn(tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        reader, writer = await made.client()
        writer.write(ECHO * 3 + b"nonsense\n" + ECHO)
        replies = [json.loads(await reader.readline()) for _ in range(5)]
        assert [list(reply) for reply in replies] == [["result"]] * 3 + [["error"], ["result"]]
        writer.close()

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (b"nonsense\n", "malformed", "it is not one line of JSON in UTF-8"),
        (b'{"command": "explode"}\n', "malformed", "unknown command 'explode'; known: broken, echo, large, no, slow"),
        (b'{"command": "echo"}\n', "malformed", "argument 'text' is missing; expected a text"),
        (b'{"command": "no"}\n', "refused", "not now"),
        (b'{"command": "broken"}\n', "failed", "RuntimeError: a defect; the broker's log says more"),
        (b"x" * (REQUEST_BYTES_MAX + 1), "malformed", f"the request is longer than {REQUEST_BYTES_MAX} bytes"),
    ],
)
def test_errors_are_answers(line: bytes, kind: str, text: str, tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        assert await made.ask(line) == {"error": {"kind": kind, "text": text}}
        assert await made.ask(ECHO) == {"result": {"text": "hello"}}

    run(scenario, tmp_path)


def test_clients_that_do_not_behave_do_not_hinder_others(tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        _, silent = await made.client()
        _, half = await made.client()
        half.write(ECHO[:10])
        _, gone = await made.client()
        gone.write(b'{"command": "large"}\n')
        gone.transport.abort()
        _, lazy = await made.client()  # asks much and takes nothing
        lazy.write(b'{"command": "large"}\n' * 100)
        for _ in range(20):
            assert await made.ask(ECHO) == {"result": {"text": "hello"}}
        for writer in (silent, half, lazy):
            writer.transport.abort()

    run(scenario, tmp_path)


def test_who_is_silent_for_too_long_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "IDLE_S_MAX", 0.05)

    async def scenario(made: Harness) -> None:
        silent, _ = await made.client()
        half, writer = await made.client()
        writer.write(ECHO[:10])
        assert (await half.read(), await silent.read()) == (b"", b"")

    run(scenario, tmp_path)


def test_too_many_clients_are_answered_so(tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        clients = [await made.client() for _ in range(CONNECTIONS_MAX)]
        for reader, writer in clients:
            writer.write(ECHO)
            assert await reader.readline()
        reader, _ = await made.client()
        expected = f"{CONNECTIONS_MAX} control clients are connected, no more are taken"
        assert json.loads(await reader.readline())["error"]["text"] == expected
        clients[0][1].close()
        while (await made.ask(ECHO)).get("result") is None:
            pass  # until the server has noticed

    run(scenario, tmp_path)


async def with_slow_command(made: Harness) -> asyncio.StreamWriter:
    """A client whose command is under way."""
    _, writer = await made.client()
    writer.write(b'{"command": "slow"}\n')
    await made.ask(ECHO)
    return writer


def test_a_command_is_finished_even_if_nobody_waits_for_it(tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        writer = await with_slow_command(made)
        writer.transport.abort()
        await made.ask(ECHO)
        made.go_on.set()
        await made.server.quiesce(5)
        assert made.finished == 1

    run(scenario, tmp_path)


def test_the_stop_waits_for_commands_and_takes_no_new_ones(tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        first_reader, first = await made.client()
        second_reader, second = await made.client()
        second.write(ECHO)
        await second_reader.readline()
        first.write(b'{"command": "slow"}\n')
        await made.ask(ECHO)
        stopping = asyncio.create_task(made.server.quiesce(10))
        while (made.directory / SOCKET_NAME).exists():
            await asyncio.sleep(0)
        second.write(ECHO)
        assert json.loads(await second_reader.readline())["error"]["text"] == "the broker is stopping"
        assert not stopping.done()
        made.go_on.set()
        await stopping
        assert json.loads(await first_reader.readline()) == {"result": {}}
        await made.server.close()
        assert (await first_reader.read(), await second_reader.read()) == (b"", b"")

    run(scenario, tmp_path)


def test_the_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def scenario(made: Harness) -> None:
        await with_slow_command(made)
        await made.server.quiesce(0.05)
        assert made.finished == 0

    run(scenario, tmp_path)


def test_a_plain_socket_suffices(tmp_path: Path) -> None:
    """The protocol as the documentation tells it, byte by byte."""

    async def scenario(made: Harness) -> None:
        def talk() -> bytes:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(str(made.directory / SOCKET_NAME))
                for byte in ECHO:
                    connection.sendall(bytes([byte]))
                return connection.recv(1000)

        assert await asyncio.to_thread(talk) == b'{"result":{"text":"hello"}}\n'

    run(scenario, tmp_path)
