"""``ctl status``, ``topics`` and ``partitions`` against a real broker; and what ctl says when there is none."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, run_broker_command, wait_until
from operated import ask, ctl, refusal, report, stored

import metaq

pytestmark = pytest.mark.process


def test_status_reports_what_runs(broker: RunningBroker, ini: Path) -> None:
    client = broker.client()
    for index in (0, 0, 3):
        stored(client, "orders", index, b"x" * 80)
    status = ask(broker, "status")
    assert 0 < status["data"][0].pop("free_bytes") < 1 << 60
    assert status["config"].pop("loaded_ms") > 1_700_000_000_000
    assert status["config"].pop("checksum") > 0
    assert 0 <= status.pop("uptime_s") < 60
    assert status["transactions"].pop("journal_bytes") >= 0
    assert status == {
        "version": metaq.__version__,
        "pid": broker.process.pid,
        "broker_id": 1,
        "address": str(broker.address),
        "metrics_address": None,
        "data": [{"path": str(broker.data), "puts_refused": None}],
        "config": {"file": str(ini), "restart_needed": []},
        "zookeeper": None,
        "replication": {
            "role": "alone",
            "trouble": None,
            "not_followed": None,
            "state_not_copied": None,
            "lag_bytes": None,
            "not_copied": [],
        },
        "durability": {
            "durability": "group_commit",
            "topics": {"late": {"durability": "threshold", "unflush_threshold": 10, "unflush_interval_ms": 10_000}},
        },
        "connections": 1,
        "topics": 1,
        "partitions": 2,
        "messages": 3,
        "bytes": 300,
        "transactions": {"open": 0, "prepared": 0, "committed": 0, "rolled_back": 0},
        "stuck_commits": [],
        "closed": [],
        "read_only": [],
        "not_served": [],
        "quarantined": [],
        "clock": None,
        "lost": [],
    }


def test_status_for_people(broker: RunningBroker, ini: Path) -> None:
    stored(broker.client(), "orders", 0, b"x")
    report(broker, "close", "orders", "1-2")
    lines = [line.split(None, 1) for line in report(broker, "status")]
    facts = {words[0]: words[-1] for words in lines}
    assert facts["broker"] == f"1, metaq-broker {metaq.__version__}, process {broker.process.pid}"
    assert facts["address"] == str(broker.address)
    assert facts["metrics"] == "off"
    assert facts["data"].startswith(f"{broker.data}, ")
    assert facts["configuration"].startswith(f"{ini}, checksum ")
    assert facts["durability"] == "group commit: acknowledged when it is on the disk"
    assert facts["late"] == "threshold: acknowledged when it is written, on the disk after 11 messages or 10000 ms"
    assert facts["stored"] == "1 message, 21 B in 1 topic, 1 partition"
    assert [words[1] for words in lines if words[0] == "closed"] == ["orders-1", "orders-2"]


def test_topics(broker: RunningBroker) -> None:
    stored(broker.client(), "orders", 2, b"x" * 80)
    common = {"accepted": True, "num_partitions": 4, "data_path": str(broker.data)}
    retention = {"delete_policy": "delete,168", "delete_when": "0 0 6,18 * * ?"}
    late = {"durability": "threshold", "unflush_threshold": 10, "unflush_interval_ms": 10_000}
    rows = ask(broker, "topics")["topics"]
    assert [row.pop("next_retention_ms") is None for row in rows] == [True, False]
    assert rows == [
        {"topic": "late", "partitions": 0, "messages": 0, "bytes": 0, **late, **common, **retention},
        {"topic": "orders", "partitions": 1, "messages": 1, "bytes": 100, "durability": "group_commit"}
        | common
        | retention,
    ]
    assert report(broker, "topics") == [
        "TOPIC   PARTITIONS  MESSAGES  SIZE   PUTS      DURABILITY    RETENTION",
        "late    0 of 4             0  0 B    accepted  threshold     delete,168 at 0 0 6,18 * * ?",
        "orders  1 of 4             1  100 B  accepted  group commit  delete,168 at 0 0 6,18 * * ?",
    ]


def test_partitions(start_broker: StartBroker, ini: Path) -> None:
    ini.write_text(ini.read_text().replace("maxSegmentSize=1024*1024", "maxSegmentSize=150"))
    broker = start_broker("start", "-f", ini)
    client = broker.client()
    for _ in range(3):
        stored(client, "orders", 0, b"x" * 80)
    stored(client, "late", 1, b"x" * 80)
    orders = {"topic": "orders", "index": 0, "start": 0, "end": 300, "readable_end": 300, "messages": 3, "segments": 2}
    late = {"topic": "late", "index": 1, "start": 0, "end": 100, "readable_end": 0, "messages": 1, "segments": 1}
    rest = {"closed": False, "failure": None, "quarantined": []}
    assert ask(broker, "partitions")["partitions"] == [late | {"bytes": 100} | rest, orders | {"bytes": 300} | rest]
    assert ask(broker, "partitions", "orders")["partitions"] == [orders | {"bytes": 300} | rest]
    assert report(broker, "partitions") == [
        "PARTITION  START  END  READABLE  MESSAGES  SEGMENTS  SIZE   STATE",
        "late-1         0  100         0         1         1  100 B  ok",
        "orders-0       0  300       300         3         2  300 B  ok",
    ]


def test_partitions_of_no_topic(broker: RunningBroker, start_broker: StartBroker, tmp_path: Path) -> None:
    assert refusal(broker, "partitions", "nothing") == "this broker has no topic 'nothing'"
    assert report(broker, "partitions", "orders") == ["no partitions"]
    dev_broker = start_broker("dev", tmp_path / "dev", "--port", "0")
    assert refusal(dev_broker, "partitions", "nope") == "this broker has no topic 'nope' yet; the first put creates it"


def test_a_broker_is_found_by_its_address(dev_broker: RunningBroker, tmp_path: Path) -> None:
    by_address = ctl("--brokers", str(dev_broker.address), "status", "--json")
    assert by_address.status == 0
    assert by_address.document["address"] == str(dev_broker.address)
    nobody = ctl("--brokers", "127.0.0.1:1", "status")
    assert (nobody.status, nobody.lines) == (3, [])
    assert "127.0.0.1:1" in nobody.error
    two = ctl("--brokers", "127.0.0.1:1,127.0.0.1:2", "status")
    assert (two.status, "ctl administers one broker at a time" in two.error) == (2, True)


def test_a_broker_whose_folder_is_not_here(dev_broker: RunningBroker) -> None:
    dev_broker.data.rename(dev_broker.data.with_name("elsewhere"))
    answer = ctl("--brokers", str(dev_broker.address), "status")
    assert answer.status == 3
    assert "which is not on this machine; ctl works on the broker's machine, `metaq-broker stats" in answer.error


def test_stats_of_brokers_by_address(dev_broker: RunningBroker) -> None:
    def stats(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_broker_command("stats", *arguments)

    one = stats("--brokers", str(dev_broker.address), "config")
    assert (one.returncode, one.stderr) == (0, "")
    assert f"dataPath={dev_broker.data}\n" in one.stdout
    several = stats("--brokers", f"{dev_broker.address},127.0.0.1:1")
    assert several.returncode == 1
    assert several.stdout.startswith(f"broker {dev_broker.address}\nSTATS\npid {dev_broker.process.pid}\n")
    assert several.stderr.startswith("metaq-broker: ")
    assert several.stderr.count("\n") == 1
    wrong = stats("--brokers", "nonsense")
    assert (wrong.returncode, "'nonsense'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "subcommands"), [([], ["start", "dev", "init", "ctl", "stats"]), (["ctl"], ["status", "partitions"])]
)
def test_without_a_subcommand_they_are_listed(arguments: list[str], subcommands: list[str]) -> None:
    done = run_broker_command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    for name in subcommands:
        assert re.search(rf"^ +{name}  +\w", done.stderr, re.MULTILINE), done.stderr


def test_a_development_broker_is_operated_too(dev_broker: RunningBroker) -> None:
    assert ask(dev_broker, "status")["config"]["file"] is None
    assert report(dev_broker, "topics") == [
        "TOPIC  PARTITIONS  MESSAGES  SIZE  PUTS      DURABILITY    RETENTION",
        "*      0 of 2             0  0 B   accepted  group commit  delete,168 at 0 0 6,18 * * ?",
    ]


def test_the_folder_is_found_in_a_configuration_with_other_faults(broker: RunningBroker, ini: Path) -> None:
    assert ctl("-f", ini, "--json", "status").document["pid"] == broker.process.pid
    ini.write_text(ini.read_text().replace("numPartitions=4", "numPartitions=x"))
    assert ctl("status", "-f", ini, "--json").document["pid"] == broker.process.pid
    ini.write_text("[topic=orders]\n")
    assert ctl("-f", ini, "status").status == 2


# ---- the socket


def test_the_socket_is_its_owners_alone_and_gone_after_a_stop(broker: RunningBroker) -> None:
    path = broker.data / "control.sock"
    mode = os.stat(path).st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    assert broker.stop() == 0
    assert not path.exists()


def test_a_dead_brokers_socket_is_replaced(broker: RunningBroker, ini: Path, start_broker: StartBroker) -> None:
    broker.kill()
    assert (broker.data / "control.sock").exists()
    assert ctl("--data", broker.data, "status").status == 3
    again = start_broker("start", "-f", ini)
    assert ask(again, "status")["pid"] == again.process.pid


def test_a_data_folder_with_a_very_long_path(start_broker: StartBroker, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / ("name" * 30)
    broker = start_broker("dev", folder, "--port", "0")
    assert ask(broker, "status")["pid"] == broker.process.pid
    assert (folder / "control.sock").exists()


def test_a_broker_whose_socket_cannot_be_made_serves_clients(ini: Path, start_broker: StartBroker) -> None:
    (ini.parent / "data").mkdir()
    (ini.parent / "data" / "control.sock").write_text("")
    broker = start_broker("start", "-f", ini)
    assert stored(broker.client(), "orders", 0, b"x") == 0
    wait_until(lambda: "no control socket" in broker.log_text(), "the reason is in the log")
    answer = ctl("--data", broker.data, "status")
    assert (answer.status, answer.error.count("\n")) == (3, 1)
    assert f"a broker (process {broker.process.pid}) is starting or stopping, or has no control socket" in answer.error


# ---- no broker, wrong words


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: None, "there is no such data folder"),
        (lambda folder: folder.mkdir(), "no broker runs with this data folder"),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["close", "orders", "0"], ["shutdown", "--wait"]])
def test_no_broker(make, sentence: str, command: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "data")
    answer = ctl("--data", tmp_path / "data", *command)
    assert (answer.status, answer.out, answer.error) == (3, "", f"metaq-broker: {sentence}: {tmp_path}/data\n")
    document = ctl("--data", tmp_path / "data", "--json", *command).document
    assert document["error"]["kind"] == "no_broker"


def test_a_broker_that_does_not_answer(broker: RunningBroker) -> None:
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        answer = ctl("--data", broker.data, "--timeout", "0.2", "status")
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    expected = "no answer to command status within 0.2 s; the broker may still be busy with it (--timeout)"
    assert (answer.status, answer.error) == (3, f"metaq-broker: {expected}\n")
    assert ask(broker, "status")["connections"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status"], "ctl needs --data DIR, -f server.ini or --brokers HOST:PORT"),
        (["--data", "x", "-f", "y", "status"], "not allowed with argument"),
        (["--data", "x"], "ACTION"),
        (["--data", "x", "explode"], "invalid choice: 'explode'"),
        (["--data", "x", "close", "orders"], "INDEX[-INDEX]"),
        (["--data", "x", "close", "orders", "one"], "partition 'one': expected an index, 0..2147483647"),
        (["--data", "x", "close", "orders", "1-"], "partition '': expected an index"),
        (["--data", "x", "close", "orders", "-1"], "INDEX[-INDEX]"),
        (["--data", "x", "move", "orders", "1"], "one of the arguments --offset --to is required"),
        (["--data", "x", "move", "orders", "1", "--to", "1", "--offset", "1"], "not allowed with argument"),
        (["--data", "x", "reopen", "orders", "9999999999"], "expected an index"),
        (["--data", "x", "transaction", "bless", "XID"], "invalid choice: 'bless'"),
        (["--data", "x", "--timeout", "0", "status"], "'0': expected seconds"),
        (["-f", "/nowhere.ini", "status"], "/nowhere.ini: cannot be read: No such file or directory"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    answer = ctl(*arguments)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["close", "orders", "5-2"], "partitions 5-2: expected FIRST-LAST, at most 100000 of them"),
        (["open", "orders", "0-2000000"], "partitions 0-2000000: expected FIRST-LAST"),
        (["transaction", "commit", "XID:1"], "transaction key 'XID:1': expected TX:SESSION:N or XID:"),
    ],
)
def test_arguments_that_the_broker_finds_wrong(arguments: list[str], message: str, broker: RunningBroker) -> None:
    answer = ctl("--data", broker.data, *arguments)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.error


def test_a_second_broker_does_not_touch_the_first_ones_socket(
    broker: RunningBroker, ini: Path, start_broker: StartBroker
) -> None:
    with pytest.raises(pytest.fail.Exception, match="is in use by another broker"):
        start_broker("start", "-f", ini)
    assert ask(broker, "status")["pid"] == broker.process.pid
