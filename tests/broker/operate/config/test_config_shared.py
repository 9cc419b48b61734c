"""``stats config`` shows nothing that MetaQ's own parser stops at."""

from __future__ import annotations

import zlib

import pytest
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.sections import SYSTEM_KEYS
from metaq_broker.operate.config.shared import shared_text

METAQ_SYSTEM = {
    *("brokerId", "numPartitions", "serverPort", "dashboardHttpPort", "hostName", "dataPath", "dataLogPath"),
    *("appClassPath", "unflushThreshold", "unflushInterval", "maxSegmentSize", "maxTransferSize", "deletePolicy"),
    *("deleteWhen", "getProcessThreadCount", "putProcessThreadCount", "quartzThreadCount", "maxCheckpoints"),
    *("checkpointInterval", "maxTxTimeoutTimerCapacity", "maxTxTimeoutInSeconds", "flushTxLogAtCommit"),
    *("acceptPublish", "acceptSubscribe", "stat", "updateConsumerOffsets", "loadMessageStoresInParallel"),
}
"""What the class MetaConfig of MetaQ 1.4.6.2 reads in ``[system]``."""

METAQ_TOPIC = {
    *("numPartitions", "stat", "deletePolicy", "deleteWhen", "dataPath", "unflushInterval", "unflushThreshold"),
    *("acceptPublish", "acceptSubscribe"),
}
"""What it reads in ``[topic=NAME]``, besides ``group.NAME``."""

OURS = """\
# a remark
[system]
brokerId=3
numPartitions=2
bindAddress=127.0.0.1
unflushThreshold : 0
unflushInterval=10000
maxMessageSize : 1024
maxSegmentSize=1024
maxTransferSize=1024

; own
allowPublish=
[zookeeper]
zk.zkConnect=z:2181
[topic=t]
stat=true
allowSubscribe=
group.g=com.example.F
"""

SHOWN = """\
# a remark
[system]
brokerId=3
numPartitions=2
unflushThreshold : 0
unflushInterval=10000
maxSegmentSize=1024
maxTransferSize=1024

; own
[zookeeper]
zk.zkConnect=z:2181
[topic=t]
stat=true
group.g=com.example.F
"""


def keys_of(section: str, text: bytes) -> set[str]:
    lines = text.decode().splitlines()
    return {line.partition("=")[0] for line in lines[lines.index(section) + 1 :] if "=" in line}


@pytest.mark.parametrize("section", ["[system]", "[topic=t]"])
def test_only_keys_that_metaq_knows_are_shown(section: str) -> None:
    every = "".join(f"{key.name}=1\n" for key in SYSTEM_KEYS)
    known = METAQ_SYSTEM if section == "[system]" else METAQ_TOPIC
    assert keys_of(section, shared_text(f"{section}\n{every}localReads=true\nlocalWrites=true\n".encode())) == known


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_everything_else_stays_as_it_is(start: bytes, end: str) -> None:
    ours, shown = (start + text.replace("\n", end).encode() for text in (OURS, SHOWN))
    assert shared_text(ours) == shown
    assert shared_text(shown) == shown


def test_a_file_in_metaqs_own_encoding_keeps_it() -> None:
    text = "[system]\n; 服务器配置\nbrokerId=1\n[topic=测试]\nstat=true\n[slave]\nslaveId=-1\nown=1\n".encode("gbk")
    assert shared_text(text) == text


def test_the_checksum_is_of_what_is_shown() -> None:
    """A Java slave writes the answer to its own file, and compares the checksums."""
    assert parse(OURS.encode()).checksum == zlib.crc32(SHOWN.encode())


def test_a_size_with_a_unit_is_shown_as_a_number() -> None:
    """MetaQ reads only numbers, and arithmetic on them."""
    with_units = OURS.replace("maxSegmentSize=1024", "maxSegmentSize = 1 KB").replace("Size=1024", "Size=1k")
    shown = SHOWN.replace("maxSegmentSize=1024", "maxSegmentSize = 1024")
    assert shared_text(with_units.encode()).decode() == shown
    arithmetic = OURS.replace("maxSegmentSize=1024", "maxSegmentSize=32*32")
    assert b"maxSegmentSize=32*32\n" in shared_text(arithmetic.encode())
