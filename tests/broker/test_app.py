"""The broker as one object: why it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.app import Broker, StartFailed
from metaq_broker.operate.config.configuration import parse
from metaq_broker.transactions.manager import TransactionManager
from metaq_broker.transactions.outcomes import JournalUnavailable, TransactionRefused
from waiting import in_loop


@in_loop
async def test_a_journal_that_takes_nothing_at_the_start_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_manager: TransactionManager) -> None:
        raise TransactionRefused(JournalUnavailable("no space left on device"))

    monkeypatch.setattr(TransactionManager, "recover_from_journal", refuse)

    broker = Broker(parse(f"{system_section(dataPath=tmp_path)}[topic=t]\n".encode()), None, lambda: None)
    try:
        with pytest.raises(StartFailed) as failed:
            await broker.open()
    finally:
        await broker.close()
    where = tmp_path / "transactions"
    assert str(failed.value) == f"transactions in {where}: transaction journal: no space left on device"
