"""The process that serves HTTP beside a broker: started, watched, stopped; and what keeps a broker from starting."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, run_broker_command, system_section, wait_until, write_ini
from fix_tls import Certificates
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.http import HttpConfig
from metaq_broker.operate.http import requirements
from metaq_broker.operate.http.requirements import HttpUnavailable, listen

TOKEN = "a-secret-of-some-length"


@pytest.fixture
def http_broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return start_broker("start", "-f", write_ini(tmp_path / "one", "[topic=*]\n[http]\nport=0\nwrite=true\n"))


def config(**keys: object) -> HttpConfig:
    lines = "".join(f"{name}={value}\n" for name, value in keys.items())
    found = parse(f"{system_section()}[topic=*]\n[http]\nport=0\n{lines}".encode()).http
    assert found is not None
    return found


def url_of(broker: RunningBroker) -> str:
    assert broker.process.stdout is not None
    match = re.fullmatch(r"HTTP and dashboard: (http://127\.0\.0\.1:\d+/)\n", broker.process.stdout.readline())
    assert match is not None
    return match[1]


def server(url: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{url}v1/server", timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def children(broker: RunningBroker) -> list[int]:
    """The processes that the broker has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == broker.process.pid and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.process
def test_the_broker_starts_it_and_stops_it(http_broker: RunningBroker) -> None:
    url = url_of(http_broker)
    assert server(url)["cluster"] == str(http_broker.address)
    [pid] = children(http_broker)
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, http_broker.process.pid)
    assert http_broker.stop() == 0
    assert not is_alive(pid)


@pytest.mark.process
def test_one_that_ends_is_started_again_and_connections_wait(http_broker: RunningBroker) -> None:
    url = url_of(http_broker)
    server(url)
    [pid] = children(http_broker)
    os.kill(pid, signal.SIGKILL)
    assert server(url)["write"] is True  # the connection waits for the next process
    assert children(http_broker) != [pid]
    assert "the process that serves HTTP has ended" in http_broker.log_text()
    assert http_broker.stop() == 0


@pytest.mark.process
def test_it_does_not_outlive_a_broker_that_is_killed(http_broker: RunningBroker) -> None:
    server(url_of(http_broker))
    [pid] = children(http_broker)
    http_broker.kill()
    wait_until(lambda: not is_alive(pid), "the process ends")


@pytest.mark.process
def test_the_token_is_asked_for(start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    rest = f"[topic=*]\n[http]\nport=0\ntokenFile={tmp_path / 'token'}\n"
    broker = start_broker("start", "-f", write_ini(tmp_path / "one", rest))
    url = url_of(broker)
    with pytest.raises(urllib.error.HTTPError) as refused:
        server(url)
    assert refused.value.code == 401
    refused.value.close()
    request = urllib.request.Request(f"{url}v1/server", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    assert broker.stop() == 0


@pytest.mark.process
def test_a_port_that_is_taken_keeps_the_broker_from_starting(tmp_path: Path) -> None:

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file = write_ini(tmp_path / "one", f"[topic=*]\n[http]\nport={port}\n")
        done = run_broker_command("start", "-f", file)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"metaq-broker: cannot listen on 127.0.0.1 port {port} for HTTP ([http] port): Address already in use; "
        "choose another one (0 = any free port)"
    )


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HttpUnavailable) as failed:
        listen(config())
    assert str(failed.value) == (
        '[http] port=0 needs the package starlette: pip install "metaq-spark[console]", or set enabled=false in [http]'
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "[http] tokenFile={file} cannot be read: No such file or directory"),
        (b"short", "[http] tokenFile={file} has a token of 5 characters; expected 16 or more"),
        (b"\xff" * 20, "[http] tokenFile={file} cannot be read: it is not UTF-8"),
    ],
)
def test_a_token_that_cannot_be_used(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(HttpUnavailable) as failed:
        listen(config(tokenFile=file))
    assert str(failed.value) == sentence.format(file=file)


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(HttpUnavailable) as failed:
        listen(config(tlsCertFile=tmp_path / "none.pem"))
    assert str(failed.value) == f"[http] tlsCertFile={tmp_path / 'none.pem'} cannot be used: No such file or directory"


@pytest.mark.process
def test_a_broker_that_speaks_tls_is_reached_with_a_certificate(
    start_broker: StartBroker, certificates: Certificates, tmp_path: Path
) -> None:
    settings = certificates.client("console")
    keys = certificates.server_keys + f"tlsClientCaFile={certificates.ca_file}\n"
    rest = f"{keys}[topic=*]\n[http]\nport=0\nclientCaFile={settings.ca_file}\nclientCertFile={settings.cert_file}\n"
    broker = start_broker("start", "-f", write_ini(tmp_path / "one", rest))
    with urllib.request.urlopen(f"{url_of(broker)}v1/topics", timeout=60) as answer:
        assert json.load(answer)["rows"] == []
    assert broker.stop() == 0
