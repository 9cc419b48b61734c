"""``offset ... file``: the broker tells readers on its machine, and only them, where a partition's bytes are."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, write_ini

from metaq.backends.metaq.puts import encode_block
from metaq.model import Message
from metaq.net.machine import boot_id
from metaq.protocols.file_location import FileLocation, parse_file_location
from metaq.protocols.text.commands import PutBatch
from metaq.protocols.text.encode import encode

pytestmark = pytest.mark.process


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return started(start_broker, tmp_path)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[WireClient]:
    with closing(broker.client()) as client:
        yield client


def started(start: StartBroker, folder: Path, *more: str) -> RunningBroker:
    ini = write_ini(folder, "\n".join([*more, "[topic=t]", ""]), maxSegmentSize=2000, maxTransferSize=300)
    return start("start", "-f", ini)


def put(client: WireClient, *sizes: int) -> None:
    for size in sizes:
        code, text = client.result(encode(PutBatch("t", 0, *encode_block([Message(b"x" * size)]), 1)))
        assert code == 200, text


def place(client: WireClient, offset: int) -> FileLocation:
    code, text = client.result(b"offset t g 0 %d 5 file\r\n" % offset)
    assert code == 200, text
    return parse_file_location(text)


def extensions(client: WireClient) -> list[str]:
    return client.result(b"version 9\r\n")[1].partition(";ext=")[2].split(",")


def test_the_file_has_what_gets_give(client: WireClient) -> None:
    put(client, *[500] * 10)
    assert "file" in extensions(client)
    offset = 0
    while offset < 5200:
        found = place(client, offset)
        path = Path(found.path)
        status = path.stat()
        assert (found.device, found.inode, found.boot) == (status.st_dev, status.st_ino, boot_id())
        assert path.is_absolute()
        content = path.read_bytes()[found.position : found.position + found.length]
        sent = b""
        while len(sent) < found.length:
            sent += client.value(b"get t g 0 %d 1000 1\r\n" % (offset + len(sent)))
        assert content == sent
        offset += found.length
    assert offset == 5200


def test_an_offset_in_the_middle_of_a_segment(client: WireClient) -> None:
    put(client, 500)
    assert place(client, 20) == place(client, 0)._replace(position=20, length=500)


@pytest.mark.parametrize(
    ("request_line", "code", "text"),
    [
        (b"offset t g 0 520 1 file\r\n", 404, "Could not find message at position 520"),
        (b"offset t g 0 -5 1 file\r\n", 301, "0"),
        (b"offset t g 7 0 1 file\r\n", 404, "The topic `t` in partition `7` is not exists"),
        (b"offset other g 0 0 1 file\r\n", 404, "The topic `other` in partition `0` is not exists"),
    ],
)
def test_refusals_are_those_of_get(client: WireClient, request_line: bytes, code: int, text: str) -> None:
    put(client, 500)
    assert client.result(request_line) == (code, text)
    get = request_line.replace(b"offset", b"get").replace(b" 1 file", b" 100 1")
    assert client.result(get) == (code, text)


def test_a_client_with_another_address_gets_no_location(broker: RunningBroker) -> None:
    with closing(broker.client()) as client:
        put(client, 500)
        client.socket.close()
        client.socket = socket.create_connection(
            (broker.address.host, broker.address.port), 20, source_address=("127.0.0.2", 0)
        )
        code, text = client.result(b"offset t g 0 0 1 file\r\n")
        assert code == 503
        assert "for readers on the broker's machine" in text
        assert str(broker.data) not in text
        assert client.result(b"offset t g 0 0 1 boundary\r\n") == (200, "0")


def test_it_can_be_switched_off(start_broker: StartBroker, tmp_path: Path) -> None:
    with closing(started(start_broker, tmp_path, "localReads=false").client()) as client:
        put(client, 500)
        assert "file" not in extensions(client)
        code, text = client.result(b"offset t g 0 0 1 file\r\n")
        assert (code, "localReads" in text) == (503, True)


def test_a_wrong_switch_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"localReads: value 'perhaps'; allowed is true or false"):
        started(start_broker, tmp_path, "localReads=perhaps")


def test_lookups_are_counted_as_offset_commands(client: WireClient) -> None:
    def counted() -> int:
        return int(client.result(b"stats  3\r\n")[1].partition("cmd_offset ")[2].split()[0])

    put(client, 500)
    before = counted()
    place(client, 0)
    assert counted() == before + 1
