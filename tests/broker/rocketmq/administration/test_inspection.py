"""What administrators' tools ask of a running broker, beside topics and groups: figures, producers, queues, copies."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fix_broker import StartBroker, wait_until, write_ini

from metaq import RocketMQ
from metaq.formats.rocketmq.tags import tag_hash
from metaq.model import Partition
from peers.rocketmq.ask import Answer, ask

pytestmark = pytest.mark.process

SECTION = (
    "[zookeeper]\nzk.zkEnable=false\n[topic=orders]\nnumPartitions=2\n"
    "[rocketmq]\nenabled=true\nport=0\nbrokerIP1=127.0.0.1\nbrokerName=broker-a\n"
)
QUEUE = Partition("broker-a", 1)
MESSAGES = 5


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> Iterator[str]:
    """A broker with messages in a queue of ``orders``, and a group that has read them; both clients run on."""
    where = str(start_broker("start", "-f", write_ini(tmp_path, SECTION)).rocketmq_address)
    with RocketMQ(where) as mq, mq.consumer("g", ["orders"]) as consumer:
        producer = mq.producer(group="producers")
        for number in range(MESSAGES):
            producer.send("orders", f"message {number}", tag="red" if number else None, partition=QUEUE)
        got: list[object] = []
        wait_until(lambda: bool(got.extend(consumer.fetch(timeout=0.1))) or len(got) >= MESSAGES, "the messages")
        consumer.commit()
        wait_until(lambda: ask(where, 328).body != b'{"data":{}}', "the producer is known")
        yield where


def body(answer: Answer) -> Any:
    """The JSON of an answer; keys that are objects become their texts."""
    text = answer.checked().body.decode()
    return json.loads(re.sub(r'([{,])(\{"brokerName":"[^"]*","queueId":(\d+),"topic":"[^"]*"\}):', r'\1"\3":', text))


def test_statistics_of_topics_and_groups(broker: str) -> None:
    for name, key, wanted in (
        ("TOPIC_PUT_NUMS", "orders", MESSAGES),
        ("GROUP_GET_NUMS", "orders@g", MESSAGES),
        ("BROKER_PUT_NUMS", "DefaultCluster", MESSAGES),
        ("BROKER_GET_NUMS", "DefaultCluster", MESSAGES),
    ):
        stats = body(ask(broker, 315, {"statsName": name, "statsKey": key}))
        assert [stats[each]["sum"] for each in ("statsMinute", "statsHour", "statsDay")] == [wanted] * 3
    size = body(ask(broker, 315, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "orders"}))
    assert size["statsMinute"]["sum"] > MESSAGES * len("message 0")
    unknown = ask(broker, 315, {"statsName": "GROUP_GET_NUMS", "statsKey": "orders@nobody"})
    assert (unknown.code, unknown.remark) == (1, "The stats <GROUP_GET_NUMS> <orders@nobody> not exist")


def test_offsets_of_all_groups(broker: str) -> None:
    found = body(ask(broker, 317, {"isOrder": "false"}))
    (stats,) = next(each["g"] for each in found["consumeStatsList"] if "g" in each)
    assert (found["brokerAddr"], found["totalDiff"]) == (broker, 0)
    assert stats["offsetTable"]["1"]["consumerOffset"] == stats["offsetTable"]["1"]["brokerOffset"] == MESSAGES
    ordered = body(ask(broker, 317, {"isOrder": "true"}))
    assert [each["g"] for each in ordered["consumeStatsList"] if "g" in each] == [[]]


def test_entries_of_a_queue(broker: str) -> None:
    def entries(index: int, count: int, **fields: object) -> Any:
        asked = {"topic": "orders", "queueId": 1, "index": index, "count": count}
        return body(ask(broker, 321, asked | fields))

    found = entries(0, 100)
    assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, MESSAGES, MESSAGES)
    assert [each["tagsCode"] for each in found["queueData"]] == [0] + [tag_hash("red")] * (MESSAGES - 1)
    for each in found["queueData"]:
        message = ask(broker, 33, {"offset": each["physicOffset"]}).checked().body
        assert len(message) == each["physicSize"]
    assert entries(3, 1)["queueData"] == found["queueData"][3:4]
    assert entries(MESSAGES, 10)["queueData"] == entries(0, 0)["queueData"] == []
    assert entries(0, 1, consumerGroup="g")["subscriptionData"]["topic"] == "orders"
    assert entries(0, 1, consumerGroup="nobody")["filterData"] == "nobody@orders is not online!"
    with RocketMQ(broker) as mq:
        for _ in range(6):
            mq.producer().send("orders", bytes(4 << 20), partition=QUEUE)
    assert len(entries(MESSAGES, 6)["queueData"]) == 4, "no more than 16 MiB are read"
    refused = ask(broker, 321, {"topic": "orders", "queueId": 9, "index": 0, "count": 1})
    assert (refused.code, refused.remark) == (1, "9@orders is not exist!")


def test_producers_of_all_groups(broker: str) -> None:
    (producer,) = body(ask(broker, 328))["data"]["producers"]
    assert (producer["language"], producer["remoteIP"].split(":")[0]) == ("PYTHON", "127.0.0.1")
    assert producer["lastUpdateTimestamp"] > 1_700_000_000_000


def test_copies_of_a_broker_without_a_slave(broker: str) -> None:
    found = body(ask(broker, 907))
    assert (found["master"], found["inSyncSlaveNums"], found["haConnectionInfo"]) == (True, 0, [])
    assert found["masterCommitLogMaxOffset"] > 0


def test_expired_segments_are_removed_now(start_broker: StartBroker, tmp_path: Path) -> None:
    """The broker is restarted in between: what was sent in a run is kept by the time that this run has lasted."""
    ini = write_ini(tmp_path, SECTION, maxSegmentSize=400, deletePolicy="delete,1")
    broker = start_broker("start", "-f", ini)
    with RocketMQ(str(broker.rocketmq_address)) as mq:
        for number in range(MESSAGES):
            mq.producer().send("orders", f"message {number}".ljust(400), partition=QUEUE)
    broker.stop()
    segments = sorted((broker.data / "orders-1").glob("*.meta"))
    assert len(segments) >= MESSAGES
    for path in segments[:2]:
        past = path.stat().st_mtime - 3700
        os.utime(path, (past, past))
    where = str(start_broker("start", "-f", ini).rocketmq_address)
    assert segments[0].exists()
    ask(where, 329).checked()
    assert [path.exists() for path in segments[:3]] == [False, False, True]
    with RocketMQ(where) as mq:
        kept = [(message.offset, message.data.rstrip()) for message in mq.browse("orders")]
    assert kept == [(number, f"message {number}".encode()) for number in range(2, MESSAGES)]


@pytest.mark.parametrize("code", [306, 316, 329])
def test_what_is_not_needed_is_removed_and_the_rest_stays(broker: str, code: int) -> None:
    ask(broker, code).checked()
    assert (
        len(body(ask(broker, 321, {"topic": "orders", "queueId": 1, "index": 0, "count": 9}))["queueData"]) == MESSAGES
    )


def test_topics_and_groups_are_made_together_or_not_at_all(broker: str) -> None:
    def topics(*given: dict[str, Any]) -> Answer:
        return ask(broker, 18, body=json.dumps({"topicConfigList": given}).encode())

    def groups(*given: dict[str, Any]) -> Answer:
        return ask(broker, 225, body=json.dumps({"groupConfigList": given}).encode())

    first, second = ({"topicName": name, "readQueueNums": 2, "writeQueueNums": 3} for name in ("first", "second"))
    refused = topics(first, {"topicName": "a/b"})
    assert (refused.code, "topic a/b: " in refused.remark, "nothing was changed" in refused.remark) == (1, True, True)
    assert topics(first, {**second, "perm": 99}).code == 1
    assert ask(broker, 351, {"topic": "first"}).code == 17
    topics(first, second).checked()
    assert [body(ask(broker, 351, {"topic": each}))["writeQueueNums"] for each in ("first", "second")] == [3, 3]
    for wrong in ("", "a/b", "g" * 194):
        assert groups({"groupName": "one"}, {"groupName": wrong}).code == 1
    assert ask(broker, 352, {"group": "one"}).code == 26
    groups({"groupName": "one", "retryMaxTimes": 7}, {"groupName": "two"}).checked()
    assert body(ask(broker, 352, {"group": "one"}))["retryMaxTimes"] == 7
    assert (topics().code, groups().code) == (0, 0)


def test_figures_as_the_exporter_for_prometheus_reads_them(broker: str) -> None:
    """``rocketmq-exporter`` reads all of these, and gives up where one is missing or has another form."""
    table = body(ask(broker, 28))["table"]
    whole = (
        "msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalTodayMorning msgGetTotalTodayMorning bootTimestamp "
        "msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning sendThreadPoolQueueHeadWaitTimeMills "
        "queryThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize "
        "pullThreadPoolQueueSize sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity "
        "queryThreadPoolQueueCapacity commitLogMinOffset commitLogMaxOffset brokerVersion dispatchMaxBuffer "
        "pageCacheLockTimeMills getMessageEntireTimeMax putMessageTimesTotal putMessageEntireTimeMax "
        "startAcceptSendRequestTimeStamp earliestMessageTimeStamp remainTransientStoreBufferNumbs putMessageSizeTotal "
        "dispatchBehindBytes putMessageFailedTimes EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity"
    )
    for name in whole.split():
        int(table[name])
    for name in [
        "consumeQueueDiskRatio",
        "commitLogDiskRatio",
        "putMessageAverageSize",
        "putLatency99",
        "putLatency999",
    ]:
        assert float(table[name]) >= 0
    for name in ["putTps", "getMissTps", "getTransferedTps", "getTransferredTps", "getTotalTps", "getFoundTps"]:
        assert len([float(each) for each in table[name].split()]) == 3
    size, unit = table["remainHowManyDataToFlush"].split()
    assert (float(size) >= 0, unit[-1]) == (True, "B")
    times = dict(each.split(":") for each in table["putMessageDistributeTime"].split())
    assert sum(map(int, times.values())) == MESSAGES
    capacity = table["commitLogDirCapacity"].split(" ")
    assert (float(capacity[2]) > 0, capacity[3], float(capacity[6]) > 0, capacity[7]) == (True, "GiB,", True, "GiB.")
    assert int(table["commitLogMaxOffset"]) == int(table["putMessageSizeTotal"]) > 0
