"""The command ``metaq`` against real RocketMQ: what it shows of servers, and a topic that is copied as JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_commands import CapturedCommand
from fix_broker import wait_until

from metaq import RocketMQ
from metaq.client.rocketmq.records import RocketMessage
from metaq.model import Partition
from peers.rocketmq.programs import Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

Topic = Callable[..., str]


@pytest.fixture
def metaq(rocketmq: Cluster, capfdbinary: pytest.CaptureFixture[bytes]) -> CapturedCommand:
    return CapturedCommand(capfdbinary, "-c", f"rocketmq://{rocketmq.name_servers}")


def test_doctor(metaq: CapturedCommand, rocketmq_topic: Topic, rocketmq_version: str) -> None:
    rocketmq_topic(queues=1)
    found = metaq.rows("--timeout", "60", "doctor")  # a busy machine
    assert {row["level"] for row in found} <= {"ok", "warn"}, found  # a disk may be three quarters full
    about = {row["what"].split()[-1]: row["detail"] for row in found if row["what"].startswith("broker broker-a ")}
    assert set(about) == {"connect", "answer", "clock", "disk"}
    assert about["answer"].startswith(f"V{rocketmq_version.replace('.', '_')}, up for ")
    assert "differs by " in about["clock"]
    assert "% full" in about["disk"]
    assert found[-1]["what"] == "routes"


def test_stats(metaq: CapturedCommand, rocketmq_topic: Topic, rocketmq_version: str) -> None:
    topic = rocketmq_topic(queues=2)
    assert metaq("produce", topic, "-m", "one", "-m", "two", "-p", "broker-a:1")[0] == 0
    wait_until(lambda: sum(row["messages"] for row in metaq.rows("stats", topic)) == 2, "the index has them")
    rows = metaq.rows("stats", topic)
    assert [(row["partition"], row["messages"], row["last_message"] is None) for row in rows] == [
        ("broker-a:0", 0, True), ("broker-a:1", 2, False),
    ]  # fmt: skip
    [broker] = metaq.rows("stats")
    assert (broker["broker"], broker["id"], broker["version"]) == (
        "broker-a", 0, f"V{rocketmq_version.replace('.', '_')}",
    )  # fmt: skip
    assert broker["messages_in"] >= 2
    assert broker["uptime_s"] is not None
    assert "version" in metaq("stats")[1]
    status, _, err = metaq("stats", "not-there")
    assert (status, "not-there" in err) == (1, True)


def test_a_topic_is_copied_as_json(
    metaq: CapturedCommand, rocketmq: Cluster, rocketmq_programs: Programs, rocketmq_topic: Topic, tmp_path: Path
) -> None:
    """What Java and we wrote, with all that a message has."""
    topic, copy, lines = rocketmq_topic(queues=3), rocketmq_topic(queues=3), tmp_path / "lines"
    rocketmq_programs.write(topic, 500, size=120, batch=10, tags=3, keys=2, properties=2)
    with RocketMQ(rocketmq.name_servers) as mq:
        odd = [
            RocketMessage(data=b"\xff"),
            RocketMessage(data="é", tag="日本", keys=["a", "b"], properties={"p": "\u2028"}),
        ]
        mq.producer().send_many(topic, odd)

        def stored(name: str) -> list[tuple[Partition, RocketMessage]]:
            return [(one.partition, one.copy()) for one in mq.browse(name)]

        wait_until(lambda: len(stored(topic)) == 502, "the index has them")
        lines.write_text(metaq("consume", topic, "--json")[1])
        status, _, err = metaq("produce", copy, "--json", str(lines))
        assert (status, err) == (0, f"502 messages sent to {copy}\n")
        wait_until(lambda: len(stored(copy)) == 502, "the index has the copies")
        assert stored(copy) == stored(topic)
