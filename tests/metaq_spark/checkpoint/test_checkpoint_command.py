"""The command metaq-spark: what it answers, in text and JSON, and what it complains about."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import commit, files, offset, plan, query
from fix_broker import RunningBroker

import metaq
from metaq.backends.metaq.pool import SessionPool
from metaq.client.producer import Producer
from metaq.discovery.fixed import FixedDirectory
from metaq.model import Message, Partition

Command = Callable[..., tuple[int, str, str]]


def test_without_brokers_it_shows_what_the_folder_says(command: Command, tmp_path: Path) -> None:
    plan(query(tmp_path, offset(orders={"0-0": 21, "0-1": 5})), 1, offset(orders={"0-0": 42, "0-1": 5, "2-0": 0}))
    status, out, err = command("checkpoint", "show", tmp_path)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [
        f"checkpoint {tmp_path}",
        "query query-id; last committed batch 0; batch 1 is planned, not committed",
    ]
    assert [line.split() for line in lines[4:]] == [
        ["source", "1"],
        ["partition", "read", "to", "planned", "to"],
        ["orders/0-0", "21", "42"],
        ["orders/0-1", "5", "5"],
        ["orders/2-0", "-", "0"],
    ]


def test_a_moved_and_stateful_query_with_an_unknown_source(command: Command, tmp_path: Path) -> None:
    plan(tmp_path, 0, '{"logOffset":3}', offset(orders={"0-0": 21}))
    commit(tmp_path, 0)
    plan(tmp_path, 1, '{"logOffset":3}', offset(moved=True, orders={"0-0": 0}))
    (tmp_path / "state" / "0").mkdir(parents=True)
    _, out, _ = command("checkpoint", "show", tmp_path.as_uri())
    assert "query -, stateful; last batch 0, committed; moved by batch 1, which has not run yet" in out
    assert 'source 1 does not read MetaQ: {"logOffset":3}' in out
    tree = json.loads(command("checkpoint", "show", tmp_path, "--json")[1])
    assert tree["sources"] == [
        {"number": 1, "metaq": False, "offset": '{"logOffset":3}'},
        {
            "number": 2,
            "metaq": True,
            "partitions": [
                {"topic": "orders", "partition": "0-0", "read_to": 21, "planned_to": 0}
                | dict.fromkeys(["start", "end", "lag_bytes", "lag_messages", "lag_seconds", "remark"])
            ],
        },
    ]
    assert (tree["moved"], tree["stateful"], tree["committed_batch"], tree["planned_batch"]) == (True, True, 0, 1)


@pytest.mark.process
def test_show_move_and_undo_beside_a_broker(command: Command, dev_broker: RunningBroker, tmp_path: Path) -> None:
    with_brokers = ("--brokers", dev_broker.address, "--option", "requestTimeoutMs=9000")
    pool = SessionPool()
    producer = Producer(FixedDirectory([dev_broker.address], pool), pool)
    for index in (0, 1, 0):
        producer.put("orders", Message(b"1"), Partition(0, index))
    pool.close()
    folder = query(tmp_path / "ck", offset(orders={"0-0": 0}), offset(orders={"0-0": 21}, gone={"0-0": 5}))

    _, out, _ = command("checkpoint", "show", folder, *with_brokers)
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if "/0-" in line}
    assert rows["orders/0-0"][:6] == ["21", "-", "[0,", "42)", "21", "1"]
    assert (rows["orders/0-1"][0], rows["orders/0-1"][-1]) == ("-", "new")
    assert rows["gone/0-0"] == ["5", "-", "-", "0", "-", "-", "gone"]

    before = files(folder)
    status, out, _ = command("checkpoint", "move", folder, *with_brokers, "--to", "latest", "--topic", "orders")
    assert (status, files(folder)) == (0, before)
    assert "orders/0-0" in out
    assert "Nothing was changed. The query must be stopped" in out
    _, out, _ = command("checkpoint", "move", folder, *with_brokers, "--to", "latest", "--topic", "orders", "--yes")
    assert "Done: offsets/2 was added." in out
    assert '"0-0": 42' in (folder / "offsets" / "2").read_text()

    _, out, _ = command("checkpoint", "undo", folder)
    assert "offsets/2 would be removed." in out
    assert (folder / "offsets" / "2").exists()
    _, out, _ = command("checkpoint", "undo", folder, "--yes")
    assert "Done: offsets/2 was removed" in out
    assert files(folder) == before


@pytest.mark.parametrize("queue", ["0-0", "broker-a:0"])
def test_drop_and_undo(command: Command, tmp_path: Path, queue: str) -> None:
    folder = query(tmp_path / "ck", offset(orders={queue: 0}), offset(orders={queue: 21}, gone={queue: 5}))
    before = files(folder)
    status, out, _ = command("checkpoint", "drop", folder, "--topic", "gone")
    assert (status, files(folder)) == (0, before)
    assert f"gone/{queue}" in out
    assert "Nothing was changed." in out
    _, out, _ = command("checkpoint", "drop", folder, "--topic", "gone", "--partition", queue, "--yes")
    assert "Done: offsets/2 was added." in out
    assert "gone" not in (folder / "offsets" / "2").read_text()
    command("checkpoint", "undo", folder, "--yes")
    assert files(folder) == before


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["drop", "DIR"], 2, "the following arguments are required: --topic"),
        (["drop", "DIR", "--topic", "orders"], 1, "source 1 reads nothing else; delete it to begin with other topics"),
        (["show", "DIR/nosuch"], 1, "there is no folder offsets in it"),
        (["show", "s3a://bucket/ck"], 1, "s3a is another file system"),
        (["show", "DIR", "--brokers", "nonsense"], 1, "option brokers: 'nonsense'"),
        (["show", "DIR", "--option", "tlsCaFile"], 2, "--option 'tlsCaFile': expected NAME=VALUE"),
        (["show", "DIR", "--option", "tlsCaFile=x"], 1, "option brokers: it is required"),
        (["show", "DIR", "--brokers", "b:1", "--option", "topic=x"], 1, "option topic: it says nothing about how to"),
        (["show", "DIR", "--brokers", "127.0.0.1:1", "--option", "retries=0"], 1, "broker 127.0.0.1:1: connect failed"),
        (["move", "DIR", "--brokers", "b:1", "--to", "group"], 2, "--to group"),
        (["move", "DIR", "--brokers", "b:1", "--to", "elsewhere"], 2, "--to 'elsewhere': expected earliest, latest"),
        (["move", "DIR", "--brokers", "b:1", "--to-time", "soon"], 2, "--to-time 'soon'"),
        (["move", "DIR", "--brokers", "b:1", "--to", "latest", "--partition", "0-0"], 2, "--partition: give --topic"),
        (
            ["move", "DIR", "--brokers", "b:1", "--to", "latest", "--topic", "a", "--partition", "0"],
            2,
            "partition '0': expected BROKER_ID-INDEX",
        ),
        (["move", "DIR", "--brokers", "b:1"], 2, "one of the arguments --to --to-time --to-batch is required"),
        (["move", "DIR", "--brokers", "b:1", "--to", "latest", "--to-batch", "1"], 2, "not allowed with argument"),
        (["move", "DIR", "--to", "latest"], 2, "one of the arguments --brokers --name-servers is required"),
        (["undo", "DIR", "--yes"], 1, "its last batch is no move that has not run yet; nothing to undo"),
        ([], 2, "VERB"),
    ],
)
def test_complaints(command: Command, tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    query(tmp_path, offset(orders={"0-0": 21}))
    before = files(tmp_path)
    reported = command("checkpoint", *[argument.replace("DIR", str(tmp_path)) for argument in arguments])
    assert reported[0] == status
    assert reported[1] == ""
    assert words in reported[2]
    assert files(tmp_path) == before


def test_a_source_gets_another_name(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    plan(folder, 0, f"orders:{offset(orders={'0-0': 21})}", 'files:{"logOffset":0}', form="v2")
    commit(folder, 0)
    (folder / "state" / "0").mkdir(parents=True)
    before = files(folder)
    rename = ("checkpoint", "rename", folder, "--source", "orders", "--name")
    status, out, _ = command(*rename, "sales")
    assert (status, files(folder), "Nothing was changed." in out) == (0, before, True)
    tree = json.loads(command(*rename, "sales", "--yes", "--json")[1])
    assert tree["partitions"][0] == {
        "source": "sales", "topic": "orders", "partition": "0-0", "from": 21, "to": 21, "read_again_bytes": 0,
        "skipped_bytes": 0,
    }  # fmt: skip
    written = (folder / "offsets" / "1").read_text().splitlines()
    moved = offset(orders={"0-0": 21}, moved=True)
    assert written[2:] == ['files:{"logOffset":0}', f"sales:{moved}"]
    assert "moved already" in command(*rename, "sales", "--yes")[2]
    command("checkpoint", "undo", folder, "--yes")
    assert files(folder) == before
    for name in ("files", "sales of today", ""):
        assert f"{name!r} is no new name: Spark takes letters" in command(*rename, name)[2]
    for name in ("files", "nosuch"):
        status, _, err = command("checkpoint", "rename", folder, "--source", name, "--name", "sales")
        assert (status, "its sources with a name that read MetaQ or RocketMQ are: orders" in err) == (1, True)
    query(tmp_path / "unnamed", offset(orders={"0-0": 21}))
    words = "its sources with a name that read MetaQ or RocketMQ are: none"
    assert words in command("checkpoint", "rename", tmp_path / "unnamed", "--source", "1", "--name", "sales")[2]


def test_the_page_has_every_option_and_no_other(command: Command) -> None:
    page = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()
    reported = "".join(command("checkpoint", verb, "--help")[1] for verb in ("show", "move", "rename", "undo"))
    options = set(re.findall(r"--[a-z][a-z-]+", reported)) - {"--help"}
    assert options == set(re.findall(r"--[a-z][a-z-]+", page))


def test_where_the_packages_of_spark_are_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaq_spark.checkpoint.command", None)
    status, _, said = command("checkpoint", "show", "anywhere")
    assert (status, "pip install 'metaq-spark[spark]'" in said) == (1, True)


def test_its_version(command: Command) -> None:
    assert command("--version")[1] == f"metaq-spark {metaq.__version__}\n"
