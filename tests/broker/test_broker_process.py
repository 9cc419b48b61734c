"""Life of a broker process: start, refusal to start, stop, kill, restart, limits, faults of the disk."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import threading
from pathlib import Path

import pytest
from fix_broker import (
    DEADLINE_S,
    RunningBroker,
    StartBroker,
    WireClient,
    launch,
    run_broker_command,
    system_section,
    wait_until,
)
from text_protocol import bodies, get, placed, put, read_all

pytestmark = pytest.mark.process

SYSTEM = system_section(1)


@pytest.fixture
def ini(tmp_path: Path) -> Path:
    """A minimal server.ini for one topic, ``orders``, in a folder of this test."""
    file = tmp_path / "server.ini"
    file.write_text(f"{SYSTEM}dataPath={tmp_path / 'data'}\n[topic=orders]\n")
    return file


def refused(*arguments: str | Path) -> tuple[int, str, str]:
    """Start a broker that should not start; return exit status, standard output and error."""
    done = run_broker_command(*arguments)
    return done.returncode, done.stdout, done.stderr


def stats(broker: RunningBroker, item: str = "") -> list[str]:
    client = broker.client()
    try:
        return client.result(f"stats {item} 1\r\n".encode())[1].splitlines()[1:-1]
    finally:
        client.close()


# ---- start


def test_the_development_mode_needs_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    broker = launch(["dev", "--port", "0"], tmp_path / "log", forked=False)  # as users start it
    assert broker.data.is_dir()
    client = broker.client()
    assert placed(client.ask(put("anything", b"x", 1)))[2] == 0
    assert broker.stop() == 0
    assert broker.process.stdout is not None
    assert f'{{"brokers": "{broker.address}"}}' in broker.process.stdout.read()
    assert not broker.data.exists()
    broker.end()


def test_a_given_development_folder_is_kept(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker("dev", tmp_path / "deep" / "folder", "--port", "0")
    assert placed(first.client().ask(put("t", b"kept", 1)))[2] == 0
    assert first.stop() == 0
    again = start_broker("dev", tmp_path / "deep" / "folder", "--port", "0")
    assert bodies(again.client().value(get("t", 0))) == [b"kept"]


def test_the_ini_is_what_the_broker_shows(ini: Path, start_broker: StartBroker) -> None:
    broker = start_broker("start", "-f", ini)
    assert broker.client().result(b"stats config 1\r\n")[1] == ini.read_text()
    assert f"port {broker.address.port}" in stats(broker)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("brokerId=1", "brokerId=x"), "server.ini [system] brokerId: value 'x'; expected a whole number"),
        (("brokerId=1\n", ""), "server.ini [system] brokerId: is required and has no value"),
        (("serverPort", "serverport"), "[system] serverport: unknown key; the nearest valid key is serverPort"),
        (("[topic=orders]", ""), "no topic is configured"),
        (("[topic=orders]", "[slave]\nslaveId=0\n[topic=orders]"), "[slave] master: is required where"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_opens_nothing(change: tuple[str, str], message: str, ini: Path) -> None:
    ini.write_text(ini.read_text().replace(*change))
    status, out, error = refused("start", "-f", ini)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error
    assert not (ini.parent / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["start"], "-f/--file"),
        (["dev", "--port", "70000"], "port '70000': expected 0..65535"),
        (["dev", "--partitions", "0"], "partitions '0': expected 1..1000"),
        (["dev", "--log-level", "loud"], "invalid choice: 'loud'"),
        (["start", "-f", "/nowhere/server.ini"], "/nowhere/server.ini: cannot be read: No such file or directory"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str) -> None:
    status, out, error = refused(*arguments)
    assert (status, out) == (2, "")
    assert message in error


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, out, error = refused("dev", tmp_path / "data", "--port", str(port))
    assert (status, out) == (1, "")
    assert re.fullmatch(rf"metaq-broker: port {port} on 127.0.0.1 is taken.*\n", error), error


def test_a_second_broker_on_the_same_folder_is_refused(dev_broker: RunningBroker) -> None:
    status, out, error = refused("dev", dev_broker.data, "--port", "0")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert f"{dev_broker.data} is in use by another broker, process {dev_broker.process.pid}" in error
    assert dev_broker.client().ask(b"version 1\r\n").opaque == 1


def test_a_data_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, out, error = refused("dev", tmp_path / "file" / "data", "--port", "0")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert f"data folder {tmp_path}/file/data cannot be used: " in error


def test_zookeeper_is_not_silently_left_out(ini: Path, start_broker: StartBroker) -> None:
    section = "[zookeeper]\nzk.zkConnect=127.0.0.1:1\nzk.zkConnectionTimeoutMs=200\n"
    plain = ini.read_text()
    ini.write_text(plain + section)
    ended = run_broker_command("start", "-f", ini)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "metaq-broker: ZooKeeper at 127.0.0.1:1 cannot be reached within 200 ms (zk.zkConnectionTimeoutMs); check "
        "zk.zkConnect, or set zk.zkEnable=false to run without ZooKeeper"
    )
    ini.write_text(plain + section + "zk.zkEnable=false\n")
    start_broker("start", "-f", ini)


def test_the_limit_of_open_files_is_raised(dev_broker: RunningBroker) -> None:
    limits = Path(f"/proc/{dev_broker.process.pid}/limits").read_text()
    [(soft, hard)] = re.findall(r"Max open files +(\d+) +(\d+)", limits)
    assert soft == hard


# ---- stop, kill, restart


def fill(client: WireClient, topic: str, count: int) -> tuple[list[bytes], int]:
    messages = [b"%d " % number * (number % 50) for number in range(count)]
    client.send(b"".join(put(topic, body, number) for number, body in enumerate(messages)))
    replies = client.replies(count)
    return messages, placed(replies[-1])[2] + 20 + len(messages[-1])


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop_answers_keeps_everything_and_exits_with_0(
    signal_number: int, ini: Path, start_broker: StartBroker
) -> None:
    broker = start_broker("start", "-f", ini)
    messages, end = fill(broker.client(), "orders", 3000)
    broker.process.send_signal(signal_number)
    assert broker.process.wait(DEADLINE_S) == 0
    again = start_broker("start", "-f", ini)
    assert bodies(read_all(again.client(), "orders", end)) == messages
    assert "total_messages 3000" in stats(again)
    assert "Traceback" not in broker.log_text() + again.log_text()


def test_requests_that_were_received_before_the_stop_are_answered(ini: Path, start_broker: StartBroker) -> None:
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    client.ask(b"version 1\r\n")
    client.send(b"".join(put("orders", b"x" * 1000, number) for number in range(500)))
    client.reply()
    broker.process.send_signal(signal.SIGTERM)
    answered = 1
    data = client.rest()
    answered += data.count(b"result 200 ") + client.decoder.pending_bytes // 1_000_000
    assert broker.process.wait(DEADLINE_S) == 0
    again = start_broker("start", "-f", ini)
    stored = int(stats(again)[17].removeprefix("total_messages "))
    assert stored >= answered


def test_acknowledged_messages_survive_kill_9(ini: Path, start_broker: StartBroker) -> None:
    """In rounds: put until killed, restart; every acknowledged message is there once, and puts go on behind it."""
    acknowledged: dict[int, bytes] = {}
    number = 0
    for round_number in range(4):
        broker = start_broker("start", "-f", ini)
        client = broker.client()
        killer = threading.Timer(0.05 + 0.07 * round_number, broker.process.kill)
        killer.start()
        try:
            while True:
                batch = [b"message %d " % (number + position) * 20 for position in range(50)]
                number += len(batch)
                client.send(b"".join(put("orders", body, position) for position, body in enumerate(batch)))
                for body, reply in zip(batch, client.replies(len(batch)), strict=True):
                    acknowledged[placed(reply)[2]] = body
        except (OSError, AssertionError):
            killer.join()
            broker.process.wait(DEADLINE_S)
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    end = int(client.result(b"offset orders g 0 9000000000000000000 1\r\n")[1])
    offset, stored = 0, {}
    for body in bodies(read_all(client, "orders", end)):
        stored[offset] = body
        offset += 20 + len(body)
    assert len(acknowledged) > 100
    assert acknowledged.items() <= stored.items()
    assert placed(client.ask(put("orders", b"after", 1)))[2] == end


def test_segments_roll_and_are_read_across(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text().replace("maxSegmentSize=1024*1024", "maxSegmentSize=4096"))
    broker = start_broker("start", "-f", ini)
    messages, end = fill(broker.client(), "orders", 2000)
    segments = sorted(path.name for path in (broker.data / "orders-0").glob("*.meta"))
    assert len(segments) > 10
    assert all(re.fullmatch(r"\d{20}\.meta", name) for name in segments)
    client = broker.client()
    assert bodies(read_all(client, "orders", end)) == messages
    assert client.result(b"offset orders g 0 5000 1\r\n")[1] == str(int(segments[1].removesuffix(".meta")))


def test_a_wildcard_admits_and_a_removed_topic_can_still_be_read(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text() + "[topic=logs-*]\n")
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    assert placed(client.ask(put("logs-a", b"x", 1)))[2] == 0
    code, text = client.result(put("blogs-a", b"x", 1))
    assert (code, text.endswith("Detail:The server do not accept topic blogs-a")) == (500, True)
    assert broker.stop() == 0
    ini.write_text(ini.read_text().replace("[topic=logs-*]\n", ""))
    client = start_broker("start", "-f", ini).client()
    assert bodies(client.value(get("logs-a", 0))) == [b"x"]
    assert client.result(put("logs-a", b"y", 1))[1].endswith("Detail:The server do not accept topic logs-a")


def test_topics_in_folders_of_their_own(ini: Path, start_broker: StartBroker, tmp_path: Path) -> None:
    ini.write_text(ini.read_text() + f"[topic=elsewhere]\ndataPath={tmp_path / 'other'}\n")
    for expected in (1, 2):
        broker = start_broker("start", "-f", ini)
        client = broker.client()
        for topic in ("orders", "elsewhere"):
            client.ask(put(topic, b"x", 1))
            assert len(bodies(client.value(get(topic, 0)))) == expected
        assert broker.stop() == 0
    assert (tmp_path / "other" / "elsewhere-0").is_dir()
    assert not (tmp_path / "data" / "elsewhere-0").exists()


# ---- acknowledgement modes and faults


def test_in_threshold_mode_messages_are_acknowledged_before_readable(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text() + "unflushThreshold=10\nunflushInterval=100000\n")
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    for number in range(10):
        assert placed(client.ask(put("orders", b"x", number)))[2] == number * 21
    assert client.result(get("orders", 0)) == (404, "Could not find message at position 0")
    assert placed(client.ask(put("orders", b"x", 10)))[2] == 210
    wait_until(lambda: "orders part 0 min_offset 0 max_offset 231" in stats(broker, "offsets"), "eleven are synced")
    assert len(bodies(client.value(get("orders", 0)))) == 11
    threshold = "orders threshold acknowledged_after write unflush_threshold 10 unflush_interval_ms 100000"
    assert stats(broker, "durability") == ["*SYSTEM* group_commit acknowledged_after fsync", threshold]


def test_in_threshold_mode_the_interval_makes_messages_readable(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text() + "unflushThreshold=1000\nunflushInterval=50\n")
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    client.ask(put("orders", b"x", 1))
    wait_until(lambda: "orders part 0 min_offset 0 max_offset 21" in stats(broker, "offsets"), "the timer syncs")


def test_a_full_disk_stops_puts_with_the_reason_and_not_reads(ini: Path, start_broker: StartBroker) -> None:
    broker = start_broker("start", "-f", ini, file_bytes_max=100_000)
    client, stored = broker.client(), 0
    while True:
        code, text = client.result(put("orders", b"x" * 980, 1))
        if code != 200:
            break
        stored += 1
    assert (code, 50 < stored <= 100) == (500, True)
    assert "read-only" in text
    assert client.result(put("orders", b"x", 1))[0] == 500
    assert len(bodies(read_all(client, "orders", stored * 1000))) == stored
    [failure] = stats(broker, "failures")
    assert failure.startswith("orders part 0 read_only ")
    assert stats(broker)[16] == "put_failed 2"
    assert broker.stop() == 0
    again = start_broker("start", "-f", ini)
    assert placed(again.client().ask(put("orders", b"goes on", 1)))[2] == stored * 1000
    assert stats(again, "failures") == []


# ---- connections


def test_connections_above_the_limit_are_closed(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text().replace("serverPort=0", "serverPort=0\nmaxConnections=2"))
    broker = start_broker("start", "-f", ini)
    kept = [broker.client(), broker.client()]
    for number, client in enumerate(kept):
        assert client.ask(b"version %d\r\n" % number).opaque == number
    assert broker.client().rest() == b""
    kept.pop().close()
    wait_until(lambda: _accepted(broker), "a place is free again")
    assert kept[0].ask(b"version 5\r\n").opaque == 5


def _accepted(broker: RunningBroker) -> bool:
    client = broker.client()
    try:
        client.send(b"version 1\r\nquit\r\n")
        return client.rest() != b""
    except OSError:
        return False
    finally:
        client.close()


def test_silent_connections_are_closed_and_busy_ones_are_not(ini: Path, start_broker: StartBroker) -> None:
    ini.write_text(ini.read_text().replace("serverPort=0", "serverPort=0\nidleTimeout=3000"))
    broker = start_broker("start", "-f", ini)
    silent, half, busy = broker.client(), broker.client(), broker.client()
    half.send(b"put orders 0 100 0 1\r\nhalf a body")
    while not select.select([silent.socket], [], [], 0.1)[0]:
        busy.ask(b"version 1\r\n")
    assert (silent.rest(), half.rest()) == (b"", b"")
    assert busy.ask(b"version 2\r\n").opaque == 2


def test_a_segment_cut_by_others_costs_only_the_connection(dev_broker: RunningBroker) -> None:
    client = dev_broker.client()
    client.ask(put("t", b"x" * 1000, 1))
    [segment] = (dev_broker.data / "t-0").glob("*.meta")
    os.truncate(segment, 500)
    client.send(get("t", 0))
    assert len(client.rest()) < 1020
    assert dev_broker.client().ask(b"version 1\r\n").opaque == 1
