"""A process that may open few files: connections leave files for the partitions, and optional code stays optional."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, WireClient, launch, wait_until
from fix_tls import ini_text
from metaq_broker.log.files.open_files import OpenFiles
from metaq_broker.serve.acceptor import Acceptor

from metaq.formats.checksum import checksum
from metaq.model import INT32_MAX
from metaq.protocols.text.commands import Get, Put
from metaq.protocols.text.encode import encode

FILES = 400


@pytest.mark.parametrize(
    ("files", "partitions", "connections"),
    [
        (64, 0, 16),
        (64, 500, 8),
        (400, 0, 176),
        (400, 50, 76),
        (400, 125, 50),
        (1024, 0, 768),
        (1024, 300, 200),
        (65_536, 10_000, 45_312),
        (INT32_MAX, 1_000_000, int(INT32_MAX * 0.75)),
    ],
)
def test_connections_leave_files_for_partitions_and_for_the_rest(files: int, partitions: int, connections: int) -> None:
    assert OpenFiles(files).connections_max(partitions) == connections


@pytest.mark.parametrize("files", [64, 100, 400, 1024, 4096, 65_536, 1 << 20])
def test_partitions_leave_files_for_connections_and_for_the_rest(files: int) -> None:
    budget = OpenFiles(files)
    partitions = budget.partitions_max
    connections = budget.connections_max(partitions)
    assert connections >= files // 8
    assert partitions * 2 + connections + min(224, files * 3 // 4) <= files


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """One that may open few files, and rolls its segments often."""
    broker = launch_few(tmp_path, FILES)
    yield broker
    broker.end()


def launch_few(folder: Path, files: int) -> RunningBroker:
    settings = folder / "server.ini"
    settings.write_text(ini_text(folder / "data", "maxConnections=5000\n").replace("1024*1024*64", "4096"))
    return launch(["start", "-f", settings, "--port", "0"], folder / "broker.log", open_files_max=files)


def puts(client: WireClient, topics: Iterable[str], body: bytes) -> list[tuple[int, str]]:
    return [client.result(encode(Put(topic, 0, body, 0, 1, checksum(body)))) for topic in topics]


@pytest.mark.process
class TestManyPartitionsAndConnections:
    def test_all_are_answered_or_closed_at_once(self, broker: RunningBroker) -> None:
        most = OpenFiles(FILES).partitions_max
        topics = [f"topic-{number}" for number in range(most)]
        with ExitStack() as open_, closing(broker.client()) as first:
            assert {code for code, _ in puts(first, topics, bytes(1000))} == {200}
            ((code, text),) = puts(first, ["another"], b"x")
            assert (code, f"its limit of open files (ulimit -n), {FILES}, allows no more" in text) == (500, True)
            served, closed = 0, 0
            for _ in range(FILES):
                client = open_.enter_context(closing(broker.client()))
                client.socket.settimeout(60)
                try:
                    served += client.result(b"version 1\r\n")[0] == 200
                except (OSError, AssertionError):
                    closed += 1
            assert (served, closed) == (FILES // 8 - 1, FILES - FILES // 8 + 1)
            for _ in range(12):  # every partition begins new segments, with an index each
                assert {code for code, _ in puts(first, topics, bytes(1000))} == {200}
            assert first.value(encode(Get(topics[0], "g", 0, 0, 2000, 1)))
        wait_until(lambda: puts_by_a_new_client(broker), "there is buffer again for who comes now")
        log = broker.log_text()
        assert "Traceback" not in log
        assert " ERROR " not in log
        assert 1 <= log.count("connection refused, there are too many") < 10, "once in a while, not for each"

    def test_a_start_with_more_partitions_than_files_says_what_to_do(self, tmp_path: Path) -> None:
        broker = launch_few(tmp_path, 1000)
        with closing(broker.client()) as client:
            assert {code for code, _ in puts(client, (f"topic-{n}" for n in range(120)), bytes(100))} == {200}
        broker.stop()
        broker.end()
        with pytest.raises(pytest.fail.Exception) as failed:
            launch_few(tmp_path, 100)
        assert re.search(
            r"metaq-broker: data folder \S+ cannot be used: Too many open files: \S+\. This process may open 100 "
            r"files, and each partition needs up to 2: raise the limit \(ulimit -Hn, or LimitNOFILE of the service\)",
            str(failed.value),
        )
        assert "Traceback" not in str(failed.value)
        assert "is not served" not in str(failed.value)

    def test_when_no_file_is_left_at_all_clients_are_closed_and_come_again(self, broker: RunningBroker) -> None:
        """As when a library, or the system as a whole, has used them up."""
        pid = broker.process.pid
        with closing(broker.client()) as first:
            assert first.result(b"version 1\r\n")[0] == 200
            taken = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (taken, FILES))
            for _ in range(100):
                with closing(broker.client()) as client:
                    client.socket.settimeout(60)
                    assert client.rest() == b""
            assert first.result(b"version 1\r\n")[0] == 200
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (FILES, FILES))
            assert puts_by_a_new_client(broker)
        log = broker.log_text()
        assert "Traceback" not in log
        assert 1 <= log.count("connection refused, no file can be opened for it") < 10, "once in a while"


def puts_by_a_new_client(broker: RunningBroker) -> bool:
    with closing(broker.client()) as client:
        client.socket.settimeout(60)
        try:
            return puts(client, ["topic-0"], b"x")[0][0] == 200
        except (OSError, AssertionError):
            return False


def test_without_even_the_reserve_clients_wait_until_there_is_a_file_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread may take the descriptor that is kept, in the moment in which it is free."""
    monkeypatch.setattr("metaq_broker.serve.acceptor.PAUSE_S", 0.05)
    refused: list[None] = []
    served = asyncio.Event()

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()
            served.set()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        acceptor = Acceptor(loop, listener, Served, lambda: 1, lambda: refused.append(None))
        acceptor.start()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with closing(socket.create_connection(listener.getsockname())) as client:
            assert acceptor._reserve is not None
            os.close(acceptor._reserve)
            acceptor._reserve = None
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                while not refused:
                    await asyncio.sleep(0.01)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            await served.wait()
            assert client.recv(1) == b""
        acceptor.stop()

    asyncio.run(asyncio.wait_for(run(), 20))
    assert [record.getMessage() for record in caplog.records] == ["no connection can be accepted for a while"]
