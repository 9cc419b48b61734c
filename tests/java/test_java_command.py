"""The command ``metaq`` against a Java MetaQ broker; runs only where ``METAQ_JAVA_BROKER`` names one."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_commands import CapturedCommand
from fix_broker import wait_until

from metaq import MetaQ
from metaq.model import Address, TopicPartition


@pytest.fixture
def metaq(java_broker: Address, capfdbinary: pytest.CaptureFixture[bytes]) -> CapturedCommand:
    return CapturedCommand(capfdbinary, "-c", str(java_broker))


def test_doctor(metaq: CapturedCommand, java_broker: Address, java_place: TopicPartition) -> None:
    found = {row["what"].removeprefix(f"broker {java_broker} "): row for row in metaq.rows("doctor")}
    assert found.keys() - {"partitions"} == {
        "connect",
        "answer",
        "id",
        "clock",
        "disk",
    }  # unopened ones
    assert {row["level"] for row in found.values()} <= {"ok", "warn"}
    assert found["id"]["detail"].startswith(f"broker {java_place.partition.broker_id}, master, ")
    assert found["clock"]["detail"] == "not known: this broker does not report its time"


def test_doctor_compares_what_is_registered(java_zookeeper: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    metaq = CapturedCommand(capfdbinary, "-c", f"zk://{java_zookeeper}")
    # Brokers that other tests have killed stay registered until their sessions end, after 30 s.
    wait_until(lambda: metaq("doctor")[0] == 0, "the registered brokers are there", 60.0)
    lines = metaq.rows("doctor")
    assert {row["level"] for row in lines} <= {"ok", "warn"}
    said = [row["detail"] for row in lines if row["what"].startswith("registration of broker")]
    assert any("topics and patterns, as the broker says" in each for each in said), said


def test_stats(metaq: CapturedCommand, java_place: TopicPartition) -> None:
    topic = java_place.topic
    metaq("produce", topic, "-m", "x")
    [before], [counted_before] = metaq.rows("stats"), metaq.rows("stats", topic)
    assert metaq("produce", topic, "-m", "one", "-m", "two", "-p", str(java_place.partition))[0] == 0
    [after], [counted] = metaq.rows("stats"), metaq.rows("stats", topic)
    assert (after["broker"], after["role"]) == (java_place.partition.broker_id, "master")
    assert (after["puts"] - before["puts"], after["messages"] - before["messages"]) == (2, 2)
    assert (counted["messages"] - counted_before["messages"], counted["bytes"] - counted_before["bytes"]) == (2, 46)
    status, _, err = metaq("stats", f"{topic}-that-is-not-there")
    assert (status, "does not exist" in err) == (1, True)


def test_a_topic_is_copied_as_json(
    metaq: CapturedCommand, java_broker: Address, java_place: TopicPartition, tmp_path: Path
) -> None:
    """Behind itself: the messages that were there are there once more, each partition in its order."""
    topic, lines = java_place.topic, tmp_path / "lines"
    with MetaQ(str(java_broker)) as mq:
        mq.producer().send_many(topic, [b"\xff", "é", b""])
        found = {where: list(mq.browse(topic, partitions=[where])) for where in mq.cluster.partitions(topic)}
        lines.write_text(metaq("consume", topic, "--json")[1])
        assert metaq("produce", topic, "--json", str(lines))[0] == 0
        for where, messages in found.items():
            now = [(one.attribute, one.data) for one in mq.browse(topic, partitions=[where])]
            assert now == [(one.attribute, one.data) for one in messages] * 2
