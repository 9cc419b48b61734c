"""Messages that are taken back before their moment."""

from __future__ import annotations

import errno
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from metaq_broker.rocketmq.delays.delays import recall_handle
from metaq_broker.testing import Fault, FaultyFiles
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


def test_a_recall_that_the_state_has_no_space_for_leaves_the_message_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"waits", {"TIMER_DELAY_MS": "800"})
        handle = broker.last_sent.fields["recallHandle"]
        with monkeypatch.context() as patch:
            patch.setattr(broker.state, "bytes_max", 0)
            refused = await broker.ask(recall(handle))
        await broker.bodies_are(b"waits")
        text = "recall failed, the message still waits: no space for"
        assert (refused.code, str(refused.remark)[: len(text)]) == (1, text)

    play(tmp_path, scenario)


def test_a_recall_that_the_disk_refuses_holds_while_the_broker_runs(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)

    async def scenario(broker: WaitingBroker) -> None:
        await broker.stored(b"recalled", {"TIMER_DELAY_MS": "2000"})
        handle = broker.last_sent.fields["recallHandle"]
        files.fault = Fault(1, errno.ENOSPC, lasting=True, calls=frozenset({"pwrite", "create"}))
        refused = await broker.ask(recall(handle))
        text = "the message is recalled, unless the broker ends before that is on the disk: "
        assert (refused.code, str(refused.remark)[: len(text)]) == (1, text)
        assert (await broker.ask(recall(handle))).code == 29
        files.fault = None
        await until(lambda: broker.state.failure is None)

    async def after(broker: WaitingBroker) -> None:
        await broker.stored(b"right", {"TIMER_DELAY_MS": "2000"})
        await broker.bodies_are(b"right")

    play(tmp_path, scenario, clean=False, files=files)
    play(tmp_path, after, files=files)


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
