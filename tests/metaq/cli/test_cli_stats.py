"""``metaq stats`` against the bundled broker, a broker that answers as Java's does, and RocketMQ's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from local_servers import broker_thread

import metaq
from metaq.cli.main import main
from metaq.cli.output import span_text
from metaq.client.statistics import RESERVED, Realtime, broker_statistics, topic_statistics
from metaq.discovery.fixed import FixedDirectory
from metaq.discovery.stats import parse_figures
from metaq.errors import TopicNotFound
from metaq.model import Address, Partition
from metaq.testing.memory import MemoryBroker, MemoryTransport
from metaq.testing.rocketmq_server import ScriptedCluster

AT = Address("127.0.0.1", 8123)
QUEUE = Partition("broker-a", 0)
JAVA = {
    "": "pid 7\r\nbroker_id 0\r\nport 8123\r\nuptime 90061\r\nversion 1.4.6.3-SNAPSHOT\r\nslave true\r\n"
    "curr_connections 3\r\ncmd_put 12\r\ncmd_get 7\r\nput_failed 1\r\ntotal_messages 11\r\ntopics 2\r\n",
    "realtime": "realtime_put Count=12,Value=12,Value/Count=1,Count/Duration=0.5,Duration=24\r\nrealtime_get null\r\n",
    "orders": "orders\r\nresultCode 0\r\npartitions 2\r\nmessage_count 11\r\nbytes 420\r\n"
    "topic_realtime_put Count=3,Value=3,Value/Count=1,Count/Duration=1.5,Duration=2\r\n"
    "topic_realtime_get Invalid keyTwo:orders\r\n",
    "empty": "empty\r\nresultCode 2\r\npartitions 0\r\nmessage_count 0\r\nbytes 0\r\ntopic_realtime_put null\r\n",
    "rates": "rates\r\nresultCode 1\r\npartitions 0\r\nmessage_count 0\r\nbytes 0\r\n",
    "nothing": "nothing\r\nresultCode 1\r\npartitions 0\r\nmessage_count 0\r\nbytes 0\r\n",
}


class JavaBroker(MemoryBroker):
    """Answers ``stats`` with a Java broker's texts."""

    def _stats(self, item: str) -> str:
        return f"STATS\r\n{JAVA['nothing' if item.startswith('rates:') else item]}END\r\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with broker_thread(tmp_path_factory.mktemp("stats"), numPartitions=2) as address:
        yield address


def test_the_bundled_broker(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--cluster", str(address)]
    assert main([*cluster, "produce", "orders", "-m", "one", "-m", "two", "-p", "0-1"]) == 0
    assert main([*cluster, "stats"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    columns = "broker address version role uptime clients topics messages puts gets failed puts_per_s gets_per_s"
    assert head.split() == columns.split()
    assert row.split()[:4] == ["0", str(address), f"1.4.6-metaq-spark-{metaq.__version__}", "master"]
    assert main([*cluster, "stats", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["messages"], reported["puts"], reported["failed"], reported["figures"]["broker_id"]) == (
        2,
        2,
        0,
        "0",
    )
    assert reported["realtime"]["put"]["count"] == 2
    assert main([*cluster, "stats", "orders", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["partitions"], reported["messages"], reported["bytes"]) == (1, 2, 46)
    assert main([*cluster, "stats", "--all"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["broker", "figure", "value"]
    assert ["0", "total_messages", "2"] in lines
    assert ["0", "put", "count", "2"] in lines


def test_rates_are_of_the_last_minute(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--cluster", str(address)]
    assert main([*cluster, "produce", "rated", *["-m", "one"] * 9, "-p", "0-0"]) == 0
    assert main([*cluster, "consume", "rated"]) == 0
    capsys.readouterr()
    for command in (["topics"], ["stats", "rated"], ["stats"]):
        assert main([*cluster, *command, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    size = 9 * (20 + 3)
    topic = next(line for line in lines if line.get("topic") == "rated")
    assert (topic["partitions"], topic["messages"], topic["bytes"]) == (1, 9, size)
    of_topic, of_broker = lines[-2:]
    seconds = of_topic["last_minute"]["seconds"]
    assert of_topic["last_minute"] == {"seconds": seconds, "puts": 9, "bytes_out": size}
    assert of_topic["puts_per_s"] == round(9 / max(1, seconds), 2)
    assert topic["in_per_s"] > 0
    assert topic["out_kib_per_s"] > 0
    figures = of_broker["figures"]
    assert int(figures["last_minute_puts"]) == of_broker["puts"]
    assert of_broker["puts_per_s"] == round(of_broker["puts"] / max(1, int(figures["last_minute_s"])), 2)


def test_what_cannot_be_asked_is_said(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--cluster", str(address)]
    assert main([*cluster, "stats", "nothing"]) == 1
    assert capsys.readouterr().err == f"metaq: topic 'nothing' does not exist on {address}\n"
    assert main([*cluster, "stats", "reset"]) == 2  # the broker would set its counters to 0
    assert "the name is reserved in MetaQ" in capsys.readouterr().err
    assert main([*cluster, "stats", "orders", "--all"]) == 2
    assert "--all: it is for the figures of brokers" in capsys.readouterr().err


def test_every_item_of_the_bundled_broker_is_reserved(address: Address) -> None:
    from metaq.backends.metaq.session import Session

    session = Session.connect(address)
    items = {item for item in parse_figures(session.stats(["help"])["help"]) if ":" not in item}  # no topic has a colon
    session.close("asked")
    assert items - {"*EMPTY*"} | {"reset"} == RESERVED


class TestJavaBroker:
    @pytest.fixture
    def java(self) -> tuple[FixedDirectory, object]:
        from metaq.backends.metaq.pool import SessionPool

        transport = MemoryTransport({AT: JavaBroker({}, extensions=frozenset())})
        pool = SessionPool(transport=transport, clock=transport.clock)
        return FixedDirectory([AT], pool), pool

    def test_figures(self, java: tuple[FixedDirectory, object]) -> None:
        directory, pool = java
        (found,) = broker_statistics(directory, pool)  # type: ignore[arg-type]
        assert (found.broker, found.number("uptime"), found.number("cmd_offset")) == (0, 90061, None)
        assert found.realtime == {"put": Realtime(12, 12, 24)}
        assert found.realtime["put"].per_s == 0.5

    def test_topics(self, java: tuple[FixedDirectory, object]) -> None:
        directory, pool = java
        (found,) = topic_statistics(directory, pool, "orders")  # type: ignore[arg-type]
        assert (found.partitions, found.messages, found.bytes) == (2, 11, 420)
        assert found.realtime == {"put": Realtime(3, 3, 2)}
        (empty,) = topic_statistics(directory, pool, "empty")  # type: ignore[arg-type]
        assert (empty.messages, empty.realtime) == (0, {})
        with pytest.raises(TopicNotFound, match=r"'nothing' does not exist on 127\.0\.0\.1:8123"):
            topic_statistics(directory, pool, "nothing")  # type: ignore[arg-type]


def test_rocketmq(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedCluster({"broker-a": [1]}) as cluster:
        servers = "rocketmq://" + ",".join(map(str, cluster.name_servers))
        cluster.create_topic("orders", queues=2)
        cluster.append("orders", QUEUE, [b"a", b"b"], store_ms=1_700_000_000_000)
        cluster.broker().answers.figures = {
            "putMessageTimesTotal": "2", "putTps": "0.1 0.25 0.0", "getTransferedTps": "  ",
            "commitLogDiskRatio": "0.47", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
            "earliestMessageTimeStamp": "-1", "msgPutTotalTodayMorning": "5", "msgPutTotalTodayNow": "7",
        }  # fmt: skip
        assert main(["-c", servers, "stats"]) == 0
        _, master, slave = capsys.readouterr().out.splitlines()
        at = str(cluster.broker().address())
        assert master.split() == ["broker-a", "0", at, "V4_9_7", "1d", "2h", "2", "2", "-", "0.25", "-", "47%", "-"]
        assert slave.split()[:3] == ["broker-a", "1", str(cluster.broker().address(1))]
        assert main(["-c", servers, "stats", "--json"]) == 0
        reported = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (reported["uptime_s"], reported["in_per_s"], reported["figures"]["bootTimestamp"].isdecimal()) == (
            93784,
            0.25,
            True,
        )
        assert main(["-c", servers, "stats", "orders"]) == 0
        assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
            ["partition", "start", "end", "messages", "last_message"],
            ["broker-a:0", "0", "2", "2", "2023-11-14T22:13:20.000Z"],
            ["broker-a:1", "0", "0", "0", "-"],
        ]
        assert main(["-c", servers, "stats", "--all"]) == 0
        assert ["broker-a", "1", "brokerVersionDesc", "V4_9_7"] in [
            line.split() for line in capsys.readouterr().out.splitlines()
        ]
        assert main(["-c", servers, "stats", "nothing"]) == 1
        assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m 0s"), (3599, "59m 59s"), (90061, "1d 1h"), (None, None)],
)
def test_time_spans(seconds: int | None, text: str | None) -> None:
    assert span_text(seconds) == text
