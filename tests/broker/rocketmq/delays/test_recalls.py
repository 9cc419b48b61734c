"""Messages that are taken back before their moment."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from metaq_broker.rocketmq.delays.delays import recall_handle
from remoting_brokers import WaitingBroker, play
from waiting import until

from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.sends import RecallMessage


def recall(handle: str, topic: str = "t") -> RemotingCommand:
    return to_request(RecallMessage(topic=topic, recall_handle=handle, producer_group="producers"), opaque=3)


def test_taken_back_in_time_and_never_delivered(tmp_path: Path) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        first = await broker.stored(b"wrong", {"TIMER_DELAY_MS": "300", "UNIQ_KEY": "U7"})
        handle = broker.last_sent.fields["recallHandle"]
        parts = urlsafe_b64decode(handle).decode().split(" ")
        assert (parts[:3], parts[4]) == (["v1", "t", "broker-a"], first.message_ids()[0])
        await broker.stored(b"right", {"TIMER_DELAY_MS": "300"})
        response = await broker.ask(recall(handle))
        assert (response.code, response.ext) == (0, {"msgId": "U7"})
        again = await broker.ask(recall(handle))
        assert (again.code, again.remark) == (29, "recall failed, the message does not wait, or no more")
        await broker.bodies_are(b"right")

    async def after(broker: WaitingBroker) -> None:
        await until(lambda: len(broker.parts.delays.timed) == 0)
        assert broker.bodies() == [b"right"]

    play(tmp_path, scenario, clean=False)
    play(tmp_path, after)


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        ("", "not of version v1"),
        ("ä", "base64"),
        ("A", "base64"),
        (recall_handle("t", "broker-a", 5, "00"), "32 or 56"),
        (recall_handle("t", "broker-a", 5, "0" * 32), "does not wait"),
        (recall_handle("other", "broker-a", 5, "0" * 32), "topic other"),
    ],
)
def test_wrong_handles(tmp_path: Path, handle: str, remark: str) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        response = await broker.ask(recall(handle))
        assert response.code == 29
        assert remark in (response.remark or "")

    play(tmp_path, scenario)
