"""FORGET, and what an operator accepts or forgets, is answered when its record is durable, or unknown."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from metaq_broker.log.engine.gates import PutGate
from metaq_broker.operate.control import commands
from metaq_broker.operate.control.messages import CommandRefused
from metaq_broker.operate.control.services import BrokerParts
from metaq_broker.serve.replies import ReplyQueue
from metaq_broker.statistics import Statistics
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.text.transactions import TransactionCommands
from metaq_broker.transactions.outcomes import Outcome
from tx_harness import TEXTS, Harness, xid

from metaq.protocols.text.commands import TransactionCommand

X1 = xid("b1")
BROKEN = Fault(1, errno.EIO, lasting=True, calls=frozenset({"fsync", "fdatasync"}))
UNKNOWN = "is known after a restart of the broker: "


class Setting:
    """A broker's transactions, one of which an operator has committed; ``breaks`` lets every further fsync fail."""

    def __init__(self, root: Path) -> None:
        self.files = FaultyFiles(root)
        self.harness = Harness(root, self.files)
        self.harness.prepare_with(X1, b"m")
        self.harness.by_operator(X1, Outcome.COMMITTED)
        self.replies = ReplyQueue(lambda: None)
        statistics = Statistics(self.harness.clock.monotonic, lambda topic: False)
        self.commands = TransactionCommands(self.harness.tx, statistics, PutGate(), TEXTS)

    def breaks(self) -> None:
        self.files.fault = BROKEN

    def forget(self, key: object, name: str | None) -> None:
        command = TransactionCommand(cast("Any", key), "s", "FORGET", 7, unique=name)
        self.commands.transaction("A", command, self.replies)

    def answer(self) -> str:
        """Return the reply that is ready; empty if there is none."""
        return self.replies.take(1 << 20)[0].decode()

    async def by_operator(self, step: str, key: object) -> dict[str, Any]:
        """Run ``ctl transaction``; the disk works only when the command has waited for it."""
        parts = SimpleNamespace(transactions=self.harness.tx, describe=lambda refusal: TEXTS.plain(refusal).text)
        task = asyncio.create_task(commands._transaction(cast("BrokerParts", parts), step, str(key)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        self.harness.settle()
        return cast("dict[str, Any]", await task)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_forget_waits_for_its_record(setting: Setting) -> None:
    setting.forget(X1, None)
    assert setting.answer() == ""
    setting.harness.settle()
    assert setting.answer().startswith("result 200 0 7")
    setting.harness.revive(setting.files.restart())
    assert setting.harness.recover() == []


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [(X1, None, f"FORGET of transaction '{X1}' {UNKNOWN}"), (None, "q", f"the end of query q {UNKNOWN}")],
)
def test_whether_it_is_forgotten_is_unknown_after_a_failed_sync(
    setting: Setting, key: object, name: str | None, words: str
) -> None:
    setting.harness.decide("q", 1, [])
    setting.breaks()
    setting.forget(key, name)
    setting.harness.settle()
    answer = setting.answer()
    assert answer.startswith("result 500 ")
    assert f"XAException:code=-3,msg={words}" in answer


@pytest.mark.parametrize(("step", "key"), [("forget", X1), ("accept", xid("lost"))])
def test_what_an_operator_does_is_durable_when_it_is_answered(setting: Setting, step: str, key: object) -> None:
    done = asyncio.run(setting.by_operator(step, key))
    assert done == {"key": str(key), "outcome": {"forget": "forgotten", "accept": "accepted"}[step]}


@pytest.mark.parametrize(("step", "key"), [("forget", X1), ("accept", xid("lost"))])
def test_an_operator_is_told_that_it_is_unknown(setting: Setting, step: str, key: object) -> None:
    setting.breaks()
    with pytest.raises(CommandRefused, match=f"{step} of transaction '.*' {UNKNOWN}"):
        asyncio.run(setting.by_operator(step, key))
