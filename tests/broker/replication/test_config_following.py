"""What an asynchronous slave's server.ini becomes when it follows its master's."""

from __future__ import annotations

import pytest
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.following import FOLLOWED, follow_topics
from metaq_broker.operate.config.ini import ConfigError

MASTER = """\
[system]
brokerId=3
numPartitions=2
serverPort=8123
dataPath=/master
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=4096
maxTransferSize=1048576
deletePolicy=delete,168
stat=true
[zookeeper]
zk.zkConnect=127.0.0.1:2181
[topic=t]
"""
OWN = """\
; the slave of the orders
[system]
brokerId=3
numPartitions=2
serverPort=8124
dataPath=/slave
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=8192
maxTransferSize=1048576
deletePolicy=delete,24
stat=true
; limits of this machine
maxConnections=50

[zookeeper]
zk.zkEnable=false

[slave]
slaveId=0
master=10.0.0.1:8123
autoSyncMasterConfig=true

"""
T_KEYS = (
    "numPartitions=2\nunflushThreshold=0\nunflushInterval=10000\nstat=true\nacceptPublish=true\nacceptSubscribe=true\n"
)
T = f"[topic=t]\n{T_KEYS}"


JAVA = """\
[system]
brokerId=3
hostName=127.0.0.1
numPartitions=2
serverPort=18123
dashboardHttpPort=18120
dataPath=/var/lib/metaq/data
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=4096
maxTransferSize=1048576
deletePolicy=delete,168
deleteWhen=0 0 6,18 * * ?
flushTxLogAtCommit=1
stat=true
updateConsumerOffsets=true
[zookeeper]
zk.zkConnect=127.0.0.1:21811
zk.zkSessionTimeoutMs=30000
zk.zkConnectionTimeoutMs=30000
zk.zkSyncTimeMs=1000
[topic=test]
[topic=meta-test]
numPartitions=1
[topic=slow]
unflushThreshold=1000
unflushInterval=10000
numPartitions=1
[topic=wild*]
"""
"""What a Java broker answers to ``stats config``."""


def follow(master: str, own: str) -> str:
    return follow_topics(master.encode(), own.encode(), "master", "own.ini").decode()


@pytest.mark.parametrize(
    ("master", "own", "expected"),
    [
        pytest.param(MASTER, OWN + T, OWN + T, id="nothing to change"),
        pytest.param(MASTER, OWN + "[topic=t]\n", OWN + T, id="a topic says its keys itself"),
        pytest.param(
            MASTER + "[topic=new]\nnumPartitions=2*4\nstat=false\n",
            OWN + T,
            OWN
            + T
            + "\n[topic=new]\n"
            + T_KEYS.replace("numPartitions=2", "numPartitions=8").replace("stat=true", "stat=false"),
            id="a new topic",
        ),
        pytest.param(MASTER, OWN + T + "; gone\n[topic=old]\nstat=true\n", OWN + T, id="a topic that is gone"),
        pytest.param(
            MASTER,
            OWN + "[topic=a*]\n# ours\n" + T + "; the end\n",
            OWN + "# ours\n" + T + "; the end\n",
            id="comments",
        ),
        pytest.param(
            MASTER + "numPartitions=4\ndeletePolicy=delete,1\ndataPath=/x\n",
            OWN + T + "deletePolicy=archive,9\ndataPath=/y\n",
            OWN + T.replace("=2", "=4") + "deletePolicy=archive,9\ndataPath=/y\n",
            id="retention and folders are its own",
        ),
        pytest.param(
            MASTER.replace("numPartitions=2", "numPartitions=6").replace("stat=true", "stat=true\nacceptPublish=false"),
            OWN + T.replace("numPartitions=2", "numPartitions : 2*3"),
            OWN.replace("numPartitions=2", "numPartitions=6").replace(
                "maxConnections=50", "maxConnections=50\nacceptPublish=false"
            )
            + T.replace("numPartitions=2", "numPartitions : 2*3").replace("acceptPublish=true", "acceptPublish=false"),
            id="what topics of a wildcard have, and values that are written another way",
        ),
        pytest.param(
            MASTER.replace("[topic=t]", "[topic=*]"),
            OWN + T,
            OWN.rstrip("\n") + "\n\n" + "\n" + T.replace("=t]", "=*]"),
            id="a wildcard",
        ),
    ],
)
def test_the_slaves_file(master: str, own: str, expected: str) -> None:
    merged = follow(master, own)
    assert merged == expected
    assert follow(master, merged) == merged
    topics, originals = parse(merged.encode()).topics, parse(master.encode()).topics
    assert topics.keys() == originals.keys()
    for name, topic in topics.items():
        assert [getattr(topic, key) for key in FOLLOWED] == [getattr(originals[name], key) for key in FOLLOWED]


def test_bytes_stay_where_nothing_changes_and_names_come_in_any_encoding() -> None:
    own = (OWN + T).replace("\n", "\r\n").replace("orders", "订单").encode("gbk")
    assert follow_topics(MASTER.encode(), own, "master", "own.ini") == own
    merged = follow_topics((MASTER + "[topic=库存]\n").encode("gbk"), own, "master", "own.ini")
    assert [*parse(merged).topics] == ["t", "库存"]
    assert "订单".encode() in merged


def test_a_java_master_is_followed() -> None:
    own, merged = parse((OWN + T).encode()), parse(follow(JAVA, OWN + T).encode())
    assert {name: (topic.num_partitions, topic.unflush_threshold) for name, topic in merged.topics.items()} == {
        "meta-test": (1, 0),
        "slow": (1, 1000),
        "test": (2, 0),
        "wild*": (2, 0),
    }
    assert (merged.system, merged.zookeeper, merged.role) == (own.system, own.zookeeper, own.role)
    assert {topic.data_path for topic in merged.topics.values()} == {"/slave"}


@pytest.mark.parametrize(
    ("master", "own", "error"),
    [
        (MASTER.replace("Id=3", "Id=4"), OWN + T, "master [system] brokerId: value 4; expected this slave's, 3"),
        (MASTER.replace("[topic=t]", ""), OWN + T, "master: no topic is configured"),
        (MASTER + "numPartitions=0\n", OWN + T, "master [topic=t] numPartitions: value '0'"),
        (MASTER, OWN + T + "half a line\n", "own.ini line"),
    ],
)
def test_what_is_refused(master: str, own: str, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        follow(master, own)
    assert error in str(refused.value)
