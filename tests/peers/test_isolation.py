"""Servers that listen on every address run where nobody else reaches them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from peers.isolation import in_one_of_its_own, isolated
from peers.maven import Unavailable
from peers.metaq.broker import MODULE, main

pytestmark = pytest.mark.process

SERVER = """
import socket, sys
from peers.isolation import raise_loopback
raise_loopback()
server = socket.create_server(("0.0.0.0", 0))
port = server.getsockname()[1]
socket.create_connection(("127.0.0.1", port)).close()
print(port, *(name for _, name in socket.if_nameindex()), flush=True)
sys.stdin.read()
"""


def test_a_server_is_reached_from_its_namespace_only() -> None:
    try:
        command = isolated([sys.executable, "-c", SERVER])
    except Unavailable as error:
        pytest.skip(str(error))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, *interfaces = process.stdout.readline().split()
        assert interfaces == ["lo"]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), 5)
        process.communicate()
    assert process.returncode == 0


def test_a_command_in_a_namespace_has_the_loopback_interface() -> None:
    asks = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    asks += "; print(*(name for _, name in socket.if_nameindex()))"
    try:
        command = in_one_of_its_own([sys.executable, "-W", "ignore", "-c", asks])
    except Unavailable as error:
        pytest.skip(str(error))
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout) == (0, "lo\n"), done.stderr


def test_a_command_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err == f"usage: python -m {MODULE} COMMAND [ARGUMENTS]\n"


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert main(["true"]) == 2
    assert capsys.readouterr().err == f"{MODULE}: MetaQ's Java broker: there is no java on this machine\n"
