"""A master with transactions is lost and its slave is promoted: what was committed is readable, the rest is nowhere."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import StartBroker
from promoted_pair import TIMEOUTS, PromotedPair

from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.puts import put
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps
from metaq.formats.frames import walk
from metaq.model import Message, Xid

pytestmark = pytest.mark.process


@pytest.mark.parametrize("role", ["pair", "slave"])
def test_the_committed_ones_are_readable(role: str, start_broker: StartBroker, tmp_path: Path) -> None:
    pair = PromotedPair(start_broker, tmp_path, is_pair=role == "pair")
    prepared = Xid(1, b"g", b"prepared", "u")
    with closing(Session.connect(pair.addresses[0], TIMEOUTS)) as session:
        transactions = TransactionSteps(session)
        local, branch = transactions.local_id(), Xid(1, b"g", b"committed", "u")
        for key, body in ((local, b"local"), (branch, b"branch"), (prepared, b"prepared")):
            transactions.begin(key)
            put(session, "t", 0, Message(body), key)
        transactions.commit(local)
        transactions.prepare(branch)
        transactions.prepare(prepared)
        transactions.commit(branch)
    pair.promote()
    with closing(Session.connect(pair.addresses[1], TIMEOUTS)) as session:
        assert TransactionSteps(session).recover() == [], "branches that are prepared are in the master's journal only"
        run = fetch(session, "t", 0, 0, 1 << 20)
        assert isinstance(run, Run)
        assert [frame.body for frame in walk(run.data)] == [b"local", b"branch"]
