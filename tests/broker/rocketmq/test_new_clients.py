"""What clients of 5.x are given in addition, and that others get what 4.9.7 gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_broker import StartBroker, write_ini
from remoting_headers import pull_header, send_header
from request_replay import AS_RECORDED, Wire

from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.records import read_records
from metaq.protocols.remoting.codes import VERSION
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import UpdateAndCreateTopic
from metaq.protocols.remoting.headers.fields import Request

pytestmark = pytest.mark.process

UNIT = 1
SENT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
def wire(start_broker: StartBroker, tmp_path: Path) -> Iterator[Wire]:
    address = start_broker("start", "-f", write_ini(tmp_path, AS_RECORDED, hostName="127.0.0.1")).rocketmq_address
    assert address is not None
    with closing(Wire(address)) as wire:
        yield wire


def asked(wire: Wire, header: Request, version: int, body: bytes = b"") -> RemotingCommand:
    answer = wire.ask(dataclasses.replace(to_request(header, body), version=version))
    assert answer is not None
    assert answer.code == 0, answer.remark
    return answer


@pytest.mark.parametrize(("version", "is_new"), [(VERSION, False), (412, False), (413, True), (479, True)])
def test_region_and_trace_of_messages_and_flags_of_topics(wire: Wire, version: int, is_new: bool) -> None:
    usual: Any = {"default_topic": "TBW102", "perm": 6, "topic_filter_type": "SINGLE_TAG", "order": False}
    made = UpdateAndCreateTopic(topic="t", read_queue_nums=1, write_queue_nums=1, topic_sys_flag=UNIT, **usual)
    asked(wire, made, version)
    sent = asked(wire, send_header(properties="UNIQ_KEY\x01K1"), version, b"one tea")
    assert sent.ext.items() >= SENT.items(), "in answers to all clients"
    assert sent.ext.get("transactionId") == ("K1" if is_new else None)
    pulled = asked(wire, pull_header(0), version)
    flags = {name: pulled.ext.get(name) for name in ("topicSysFlag", "groupSysFlag")}
    assert flags == ({"topicSysFlag": str(UNIT), "groupSysFlag": "0"} if is_new else dict.fromkeys(flags))
    (record,) = read_records(pulled.body)
    stored = {"UNIQ_KEY": "K1", "CLUSTER": "GoldenCluster"}
    assert record.property_map() == (SENT | stored if is_new else stored)
    batch = encode_batch([BatchElement(b"one tea", b"UNIQ_KEY\x01K1")])
    asked(wire, send_header(batch=True), version, batch)
    (record,) = read_records(asked(wire, pull_header(1), version).body)
    assert record.property_map() == stored, "as 5.5.0 stores it: tests/golden/rocketmq/batches_550.jsonl"


@pytest.mark.parametrize("version", [VERSION, 479])
@pytest.mark.parametrize("properties", ["DELAY\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"])
def test_an_answer_names_the_queue_of_the_client_also_where_a_message_waits(
    wire: Wire, version: int, properties: str
) -> None:
    usual: Any = {"default_topic": "TBW102", "perm": 6, "topic_filter_type": "SINGLE_TAG", "order": False}
    made = UpdateAndCreateTopic(topic="t", read_queue_nums=4, write_queue_nums=4, topic_sys_flag=0, **usual)
    asked(wire, made, version)
    header = dataclasses.replace(send_header(properties=f"UNIQ_KEY\x01K1\x02{properties}"), queue_id=3)
    assert asked(wire, header, version, b"one tea").ext["queueId"] == "3"
