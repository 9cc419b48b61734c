"""Folders and files that are taken away from a running broker: no put is acknowledged that nobody would find again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, system_section, wait_until

from metaq.protocols.text.commands import Value

pytestmark = pytest.mark.process

SYSTEM = system_section(1, 2) + "diskCheckInterval=50\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path, data: Path) -> RunningBroker:
    """A broker with one message in each of two partitions, and its journal in another folder."""
    file = tmp_path / "server.ini"
    file.write_text(f"{SYSTEM}dataPath={data}\ndataLogPath={tmp_path / 'journal'}\n[topic=orders]\n")
    broker = start_broker("start", "-f", file)
    client = broker.client()
    assert [put(client, index)[0] for index in (0, 1)] == [200, 200]
    return broker


def put(client: WireClient, index: int = 0) -> tuple[int, str]:
    return client.result(b"put orders %d 3 0 1\r\nabc" % index)


def failures(client: WireClient) -> list[str]:
    return client.result(b"stats failures 1\r\n")[1].splitlines()[1:-1]


def refused_soon(client: WireClient, index: int = 0) -> str:
    """Put until that is refused; return the reason."""
    wait_until(lambda: put(client, index)[0] == 500, "puts are refused")
    return put(client, index)[1]


def readable(client: WireClient, index: int = 0) -> bool:
    return isinstance(client.ask(b"get orders g %d 0 1000 1\r\n" % index), Value)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_removed_data_folder_stops_puts(made_again: bool, broker: RunningBroker, data: Path) -> None:
    client = broker.client()
    # In one step, so that no check sees a partition without its folder while the data folder is still there.
    doomed = data.rename(data.with_name("doomed"))
    shutil.rmtree(doomed)
    if made_again:
        data.mkdir()
    assert f"{data} was removed or replaced" in refused_soon(client)
    assert put(client, 1)[0] == 500
    assert readable(client)
    (line,) = failures(client)
    assert line.startswith(f"{data} puts_refused ")
    assert broker.log_text().count("puts are refused, files are gone") == 1
    broker.stop()


def test_a_folder_that_comes_back_takes_puts_again(broker: RunningBroker, data: Path) -> None:
    client = broker.client()
    data.rename(data.with_name("elsewhere"))
    refused_soon(client)
    data.with_name("elsewhere").rename(data)
    wait_until(lambda: put(client)[0] == 200, "puts are accepted again")
    assert failures(client) == []
    assert broker.stop() == 0


@pytest.mark.parametrize("what", ["folder", "segment", "moved"])
def test_a_removed_partition_is_read_only_and_the_others_go_on(
    what: str, broker: RunningBroker, data: Path, start_broker: StartBroker, tmp_path: Path
) -> None:
    client = broker.client()
    if what == "folder":
        shutil.rmtree(data / "orders-0")
    elif what == "segment":
        (data / "orders-0" / f"{0:020d}.meta").unlink()
    else:
        (data / "orders-0").rename(tmp_path / "moved")
    assert "was removed or replaced" in refused_soon(client)
    assert put(client, 1)[0] == 200
    assert readable(client)
    (line,) = failures(client)
    assert line.startswith("orders part 0 read_only ")
    if what == "moved":
        (tmp_path / "moved").rename(data / "orders-0")
        wait_until(lambda: put(client)[0] == 200, "the partition takes messages again")
        return
    broker.stop()
    client = start_broker("start", "-f", tmp_path / "server.ini").client()
    assert put(client)[0] == 200
    assert [line.split(" lost_to ")[0] for line in failures(client)] == ["orders part 0 lost_from 0"]


def test_an_idle_partition_that_is_removed_is_noticed(broker: RunningBroker, data: Path) -> None:
    client = broker.client()
    shutil.rmtree(data / "orders-1")
    wait_until(lambda: any("read_only" in line for line in failures(client)), "the partition is read-only")
    assert put(client, 1)[0] == 500


def test_without_its_journal_a_broker_promises_nothing(broker: RunningBroker, tmp_path: Path) -> None:
    client = broker.client()
    shutil.rmtree(tmp_path / "journal" / "transactions")
    wait_until(lambda: len(failures(client)) == 1, "the journal is missed")
    assert put(client)[0] == 200  # plain puts need no journal
    assert client.result(b"transaction TX:a:1 null BEGIN 0 1\r\n")[0] in (200, 500)
    code, text = client.result(b"put orders 0 3 0 TX:a:1 1\r\nabc")
    assert code == 500
    assert "was removed or replaced" in text
