"""docs/transactions.md says what the code does: record types, header sizes, limits and texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from metaq_broker.transactions import journal_bytes, outcomes, records, state
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.heuristics import Heuristics
from metaq_broker.transactions.interfaces import MIB, TransactionLimits
from metaq_broker.transactions.outcomes import Outcome
from tx_harness import TEXTS, xid

TEXT = (Path(__file__).parents[3] / "docs" / "transactions.md").read_text(encoding="utf-8")


def test_every_record_type_is_in_the_table() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([A-Z]\w+) \|", TEXT, re.MULTILINE))
    written = {str(number): kind.__name__ for kind, (number, _) in records.WRITERS.items()}
    longer = (records.Decided("q", 1, (), (), (), {}, "contents"), records.Committed(1, 0, xid("b"), {}, 7))
    assert rows == written | {str(records.encode(each)[0]): type(each).__name__ for each in longer}
    assert set(map(int, rows)) == set(records.READERS)


def test_headers_end_where_the_table_says() -> None:
    last = re.search(r"^\| (\d+) \| (\d+) \| checksum of 0\.\.16", TEXT, re.MULTILINE)
    assert last is not None
    assert int(last[1]) + int(last[2]) == journal_bytes.FILE_HEADER_BYTES
    assert f"| {journal_bytes.RECORD_HEADER_BYTES} | n | payload |" in TEXT
    assert f"| 7 | 1 | version, {journal_bytes.VERSION} |" in TEXT


def test_limits() -> None:
    limits, settings = TransactionLimits(), CheckpointSettings()
    for words in (
        f"not ended | {limits.open_max} |",
        f"headers | {limits.transaction_bytes_max // MIB} MiB |",
        f"one message | {limits.message_bytes_max // MIB} MiB |",
        f"continues in the journal | {limits.spill_bytes // MIB} MiB |",
        f"together | {limits.buffered_bytes_max // MIB} MiB |",
        f"decisions | {limits.decision_bytes_max // MIB} MiB |",
        f"files of about {settings.file_bytes // MIB} MiB",
        f"`maxCheckpoints` ({settings.checkpoints_max})",
    ):
        assert words in " ".join(TEXT.split())


@pytest.mark.parametrize("outcome", list(Outcome))
def test_heuristic_texts(outcome: Outcome) -> None:
    heuristics = Heuristics()
    heuristics.remember(xid("b"), outcome)
    with pytest.raises(outcomes.TransactionRefused) as caught:
        heuristics.refuse_ended(xid("b"))
    sentence = TEXTS.plain(caught.value.refusal).text
    assert f"| {outcome.value} | `{sentence.replace(str(xid('b')), 'KEY')}`" in TEXT


def test_refusals_of_the_transition_table() -> None:
    not_now = [outcomes.NotPossibleNow(event.name) for event in state.REFUSABLE]
    for refusal in (*not_now, outcomes.NotPrepared(), outcomes.LocalPrepare()):
        if refusal not in (outcomes.NotPossibleNow("DECIDE"), outcomes.NotPossibleNow("OPERATOR")):
            code, sentence = TEXTS.step(refusal).text.removeprefix("XAException:code=").split(",msg=")
            assert f"{code} `{sentence}`" in TEXT
