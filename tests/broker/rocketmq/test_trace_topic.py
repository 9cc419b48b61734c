"""Clients that trace send to a topic of their own, which they expect to exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fix_broker import StartBroker, write_ini
from remoting_headers import send_header

from metaq.protocols.remoting.headers import to_request
from peers.rocketmq.ask import Answer, ask

pytestmark = pytest.mark.process

ROUTE, TOPIC_UNKNOWN = 105, 17
TRACES = "RMQ_SYS_TRACE_TOPIC"
SECTION = "[zookeeper]\nzk.zkEnable=false\n[topic=orders]\n[rocketmq]\nenabled=true\nport=0\nbrokerIP1=127.0.0.1\n"


def route(start: StartBroker, folder: Path, keys: str, topic: str = TRACES) -> tuple[str, Answer]:
    broker = start("start", "-f", write_ini(folder, f"{SECTION}autoCreateTopicEnable=false\n{keys}"))
    where = str(broker.rocketmq_address)
    return where, ask(where, ROUTE, {"topic": topic})


@pytest.mark.parametrize(("keys", "name"), [("", TRACES), ("msgTraceTopicName=traces\n", "traces")])
def test_traces_are_stored_although_sends_make_no_topic(
    start_broker: StartBroker, tmp_path: Path, keys: str, name: str
) -> None:
    where, answer = route(start_broker, tmp_path, keys, name)
    (queues,) = json.loads(answer.checked().body)["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (1, 1, 6)
    command = to_request(send_header(topic=name, queue_id=0))
    assert ask(where, command.code, command.ext, b"a trace").checked().fields["queueOffset"] == "0"


def test_the_topic_can_be_switched_off(start_broker: StartBroker, tmp_path: Path) -> None:
    assert route(start_broker, tmp_path, "traceTopicEnable=false\n")[1].code == TOPIC_UNKNOWN
