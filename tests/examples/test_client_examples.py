"""The examples of the Python client, and the notebook: they do what their first lines say."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from examples_folder import example
from fix_broker import RunningBroker, StartBroker

from metaq import MetaQ

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(dev_broker: RunningBroker) -> str:
    return str(dev_broker.address)


def test_send_and_read(cluster: str) -> None:
    module = example("send_and_read")
    module.send(cluster)
    assert sorted(module.read(cluster)) == ["one coffee", "one tea", "two scones"]


def test_members_share_the_work(cluster: str) -> None:
    sender, worker = example("send_and_read"), example("share_the_work")
    for _ in range(4):
        sender.send(cluster)
    handled: list[str] = []
    members = [threading.Thread(target=worker.work, args=(cluster, handled.append)) for _ in range(2)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert sorted(handled) == sorted(["one coffee", "one tea", "two scones"] * 4)


def test_both_messages_or_none(cluster: str) -> None:
    module, stock = example("all_or_nothing"), {"tea": 1}
    module.place_order(cluster, "tea", stock)
    for item in ("tea", "cake"):
        with suppress(module.OutOfStock):
            module.place_order(cluster, item, stock)
    assert list(example("send_and_read").read(cluster)) == ["tea"]


def test_many_at_once(cluster: str) -> None:
    assert asyncio.run(example("many_at_once").echo(cluster, 40)) == [f"ping {number:03}" for number in range(40)]


def test_a_reminder_arrives_when_it_is_due(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--rocketmq-port", "0")
    assert example("reminders").remind(str(broker.rocketmq_address), "buy milk", 1) >= 1


@pytest.mark.long
@pytest.mark.spark
def test_an_hour_is_counted_when_it_is_over(cluster: str, spark: Any, tmp_path: Path) -> None:
    times = ["10:05", "10:50", "11:00", "11:20", "12:30"]
    with MetaQ(cluster) as mq:
        mq.producer().send_many("orders", [json.dumps({"at": f"2026-11-27T{at}:00Z", "item": "tea"}) for at in times])
    writer = example("hourly_counts").query(spark, cluster).option("checkpointLocation", str(tmp_path))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    with MetaQ(cluster) as mq:
        counts = sorted((json.loads(message.data) for message in mq.browse("hourly")), key=lambda row: row["hour"])
    assert [row["orders"] for row in counts] == [2, 2]


@pytest.mark.spark
def test_the_notebook(cluster: str, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "first_hour.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(cell["source"]).replace("127.0.0.1:8123", cluster)
            exec(compile(text.replace('"loud-progress"', f'"{tmp_path}/loud"'), cell["id"], "exec"), names)
    shown = capsys.readouterr().out
    assert re.search(r"\| *TEA\| *2\|", shown)
    assert "drinks" in shown
