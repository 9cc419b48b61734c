"""Random histories against a model of a dozen lines: what a client sees never depends on restarts, kills or power cuts.

Each rule is one step of some client, an operator or fate. The model is ``Promises``: every transaction is absent,
prepared or committed, and after an answer it is known which.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
from examples import histories
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule
from metaq_broker.testing import FaultyFiles
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import Durability, TransactionLimits
from metaq_broker.transactions.outcomes import Outcome
from promises import Promises
from tx_harness import Harness, local, xid

from metaq.model import Xid

partition_keys = st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 2))
FATES = {Outcome.COMMITTED: "committed", Outcome.ROLLED_BACK: "absent", Outcome.COMPLETED: "absent"}


class Transactions(RuleBasedStateMachine):
    """Opens, prepared and ended transactions move between the bundles; ``promises`` knows the rest."""

    opened: Bundle = Bundle("opened")
    prepared: Bundle = Bundle("prepared")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.files = FaultyFiles(Path(self.folder.name))
        self.promises = Promises()
        self.number = 0
        self.batch_id = 0
        self.start()

    def start(self) -> None:
        self.harness = self.promises.harness = Harness(
            self.files.root,
            self.files,
            durability=Durability.COMMIT,
            checkpoint=CheckpointSettings(checkpoints_max=1, file_bytes=1_500),
            limits=TransactionLimits(spill_bytes=400),
        )
        self.open_now: set[object] = set()

    def teardown(self) -> None:
        self.promises.check(self.harness)
        self.harness.tx.close()
        self.folder.cleanup()

    def next_number(self) -> int:
        self.number += 1
        return self.number

    @rule(target=opened, is_xa=st.booleans(), at=partition_keys, size=st.sampled_from([0, 10, 500]))
    def begin(self, is_xa: bool, at: tuple[str, int], size: int) -> object:
        number = self.next_number()
        key = xid(f"b{number}") if is_xa else local(number)
        assert self.promises.begin(key, at, size=size)
        self.open_now.add(key)
        return key

    @rule(key=opened, at=partition_keys, size=st.sampled_from([0, 200]))
    def put(self, key: object, at: tuple[str, int], size: int) -> None:
        assert self.promises.put(key, at, size) is (key in self.open_now)

    @rule(at=partition_keys)
    def put_plain(self, at: tuple[str, int]) -> None:
        self.promises.put_plain(at)

    @rule(target=prepared, key=consumes(opened))
    def prepare(self, key: object) -> object:
        if not isinstance(key, Xid):
            assert "code=-3" in self.promises.prepare(key) or key not in self.open_now
            return multiple()
        answer = self.promises.prepare(key)
        assert (answer == "200 0") is (key in self.open_now)
        self.open_now.discard(key)
        return key if answer == "200 0" else multiple()

    @rule(key=consumes(opened))
    def commit_one_phase(self, key: object) -> None:
        assert (self.promises.commit(key) == "200") is (key in self.open_now)
        self.open_now.discard(key)

    @rule(key=consumes(opened))
    def rollback_open(self, key: object) -> None:
        assert (self.promises.rollback(key) == "200") is (key in self.open_now)
        self.open_now.discard(key)

    @rule(key=consumes(prepared))
    def commit_two_phase(self, key: Xid) -> None:
        assert self.promises.commit(key, one_phase=False) == "200"

    @rule(key=consumes(prepared))
    def rollback_prepared(self, key: Xid) -> None:
        assert self.promises.rollback(key) == "200"

    @rule(key=consumes(prepared), outcome=st.sampled_from(list(Outcome)), forget=st.booleans())
    def by_operator(self, key: Xid, outcome: Outcome, forget: bool) -> None:
        assert self.promises.by_operator(key, outcome, FATES[outcome]) == "200"
        assert f"code={outcome.value}" in self.harness.commit(key)
        if forget:
            assert self.harness.forget(key) == "200"

    @rule(first=consumes(prepared), second=consumes(prepared))
    def decide(self, first: Xid, second: Xid) -> None:
        self.batch_id += 1
        assert not isinstance(self.promises.decide("q", self.batch_id, (first, second, xid("elsewhere"))), str)
        assert self.harness.commit(first, False) == "200"

    @precondition(lambda self: self.batch_id > 0)
    @rule(late=st.integers(1, 3))
    def zombie(self, late: int) -> None:
        assert self.harness.decide("q", self.batch_id - late, ()).startswith("409 ")

    @rule()
    def an_hour_passes(self) -> None:
        self.harness.pass_time(3600)
        self.open_now.clear()  # the prepared ones stay

    @rule()
    def stop_and_start(self) -> None:
        self.harness.tx.close()
        self.start()

    @rule()
    def kill(self) -> None:
        self.files = self.files.restart()
        self.start()

    @rule(seed=st.integers(0, 2**16))
    def power_cut(self, seed: int) -> None:
        self.files = self.files.crash(Random(seed))
        self.start()

    @invariant()
    def every_promise_is_kept(self) -> None:
        self.promises.check(self.harness)


Transactions.TestCase.settings = histories(60, steps=40)
TestTransactions = pytest.mark.slow(Transactions.TestCase)
