"""What the query says of a failure: one sentence, the same for the same failure of every run."""

from __future__ import annotations

import pytest

from faults.exactly_once.query import reason_of

HEAD = "[STREAM_FAILED] Query [id = 489e5e37-44c4, runId = cb635051-a67d] terminated with exception: "
PYTHON = """[RUNTIME_ERROR] Failed when Python streaming data source perform commit: Traceback
  File "stream_writer.py", line 46, in commit
metaq.errors.TransactionError: broker 127.0.0.1:8123 refused: 409

The above exception was the direct cause of the following exception:

metaq_spark.errors.BatchSuperseded: batch 9 of query q is refused: it comes too late
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 489e5e37-44c4, runId = cb635051-a67d]
"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (HEAD + PYTHON, "metaq_spark.errors.BatchSuperseded: batch 9 of query q is refused: it comes too late"),
        (
            HEAD + "Concurrent update.\nIdentifier: x",
            "[STREAM_FAILED] Query terminated with exception: Concurrent update.",
        ),
        ("", "no reason given"),
    ],
)
def test_a_reason_in_one_sentence(message: str, reason: str) -> None:
    assert reason_of(message) == reason
