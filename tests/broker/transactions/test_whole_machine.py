"""The random histories of ``test_tx_machine`` on real partitions: segments roll, retention takes old ones, fsck agrees.

The model is the same, ``Promises``: whatever was promised can be read, once and in place, before and after every
restart, kill and power cut.
"""

from __future__ import annotations

import pytest
from examples import histories
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from log_harness import LogHarness
from metaq_broker.log.retention.policy import Removal
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.interfaces import TransactionLimits
from test_tx_machine import Transactions


class WholeBroker(Transactions):
    """As its base, with another kind of world."""

    harness: LogHarness | None = None  # type: ignore[assignment]

    def start(self) -> None:
        self.harness = self.promises.harness = LogHarness(
            self.files.root,
            self.files,
            checkpoint=CheckpointSettings(checkpoints_max=1, file_bytes=1_500),
            limits=TransactionLimits(spill_bytes=400),
            gone={} if self.harness is None else self.harness.gone,
        )
        self.open_now: set[object] = set()

    @rule()
    def stop_and_start(self) -> None:
        self.harness.tx.close()
        self.harness.partitions.logs.close(clean=True)
        self.start()

    @rule(removal=st.sampled_from([Removal.DELETE, Removal.ARCHIVE, Removal.ARCHIVE_PACKED]))
    def retire(self, removal: Removal) -> None:
        self.harness.retire(removal)

    @invariant()
    def every_file_is_sound(self) -> None:
        self.harness.check_files()

    def teardown(self) -> None:
        self.harness.partitions.logs.close(clean=False)
        super().teardown()


WholeBroker.TestCase.settings = histories(25, steps=30)
TestWholeBroker = pytest.mark.slow(WholeBroker.TestCase)
