"""The disk fails for good at one call, then the power: what waited is delivered once by the next process."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from examples import rarely
from metaq_broker.log.engine.outcomes import Refusal
from metaq_broker.log.files.errors import StateFull
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.messages.message_store import StoredBatch
from metaq_broker.rocketmq.session import Call
from metaq_broker.testing import Fault, FaultyFiles
from remoting_brokers import WIDE, FakeSession, WaitingBroker, play

from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.transactions import COMMIT, EndTransaction

LIFE_S = 0.5
HALF = {"TRAN_MSG": "true", "PGROUP": "producers"}


def commit(broker: WaitingBroker, half: StoredBatch) -> None:
    """Commit a half message without waiting."""
    header = EndTransaction(
        producer_group="producers",
        msg_id="",
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offsets[0],
        commit_or_rollback=COMMIT,
    )
    broker.dispatcher.carry_out(Call(to_request(header), FakeSession()))  # type: ignore[arg-type]


class Sent:
    """What was sent, and what of it was taken."""

    def __init__(self) -> None:
        self.all: list[bytes] = []
        self.taken: list[bytes] = []
        self.halves: list[StoredBatch] = []

    async def send(self, broker: WaitingBroker, body: bytes, properties: dict[str, str], queue: int) -> None:
        self.all.append(body)
        outcome = await broker.send(body, properties, topic="orders", queue=queue)
        if not isinstance(outcome, Refusal):
            self.taken.append(body)
            if properties is HALF:
                self.halves.append(outcome)
                commit(broker, outcome)


def bodies(broker: WaitingBroker) -> list[bytes]:
    return [body for queue in range(8) for body in broker.bodies("orders", queue)]


@pytest.mark.parametrize("at", [9, 60, 150, 210, 245, 270, *rarely(27, 110, 180, 230, 260)])
def test_a_fault_at_any_call(tmp_path: Path, at: int) -> None:
    sent, files = Sent(), FaultyFiles(tmp_path)

    async def first(broker: WaitingBroker) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LIFE_S):
                broker.topics.create("orders", WIDE)
                for number in range(6):
                    await sent.send(broker, b"l%d" % number, {"DELAY": "1"}, number)
                    await sent.send(broker, b"t%d" % number, {"TIMER_DELAY_MS": str(10 * number)}, number)
                    await sent.send(broker, b"h%d" % number, HALF, number)
                while len(bodies(broker)) < len(sent.all):
                    await asyncio.sleep(0.005)

    async def second(broker: WaitingBroker) -> None:
        for half in sent.halves:
            commit(broker, half)
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                while not set(sent.taken) <= set(bodies(broker)):
                    await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # what would come twice has come
        counts = Counter(bodies(broker))
        assert set(sent.taken) <= set(counts) <= set(sent.all)
        assert set(counts.values()) <= {1}

    files.fault = Fault(at, errno.EIO, kept=0.5, lasting=True)
    with suppress(OSError):
        play(tmp_path, first, clean=False, files=files)
    play(tmp_path, second, files=files.crash(Random(at)))


def test_clients_that_fill_the_state_table_stop_no_delivery(tmp_path: Path) -> None:
    """Their offsets and groups get as much as they want, but not what the broker needs for its own positions."""

    async def scenario(broker: WaitingBroker) -> None:
        broker.state.bytes_max = 1 << 16
        offsets = GroupOffsets(broker.state)
        with suppress(StateFull):
            for number in range(1 << 16):
                offsets.commit("topic", "group", number, 5)
        with pytest.raises(StateFull):
            broker.groups.find("another")
        await broker.stored(b"level", {"DELAY": "1"}, queue=1)
        await broker.stored(b"moment", {"TIMER_DELAY_MS": "1"}, queue=2)
        half = await broker.stored(b"half", HALF, queue=3)
        commit(broker, half)
        for queue, body in enumerate((b"level", b"moment", b"half"), 1):
            await broker.bodies_are(body, queue=queue)

    play(tmp_path, scenario)
