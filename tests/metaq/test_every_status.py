"""Every status code of MetaQ, from its row: the error's sentence, and whether it is tried again."""

from __future__ import annotations

import pickle

import pytest

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.errors import BrokerError, SendFailed, TransactionError
from metaq.statuses import STATUSES


@pytest.mark.parametrize("code", STATUSES)
def test_an_error_says_what_the_row_says(code: int) -> None:
    error = pickle.loads(pickle.dumps(BrokerError("b0:8123", "put orders", code, "")))
    assert str(error) == f"broker b0:8123 refused put orders with {code}: {STATUSES[code].meaning}"
    assert error.retryable is STATUSES[code].retryable
    assert str(BrokerError("b0:8123", "put orders", code, "why")).endswith(f"with {code}: why")


@pytest.mark.parametrize("kind", [BrokerError, TransactionError, RequestRefused])
def test_an_error_knows_whether_the_refused_messages_may_be_stored(
    kind: type[BrokerError | RequestRefused],
) -> None:
    for text, may_be_stored in (("no slave; it may be stored", True), ("no slave", False), ("it is stored", False)):
        error = pickle.loads(pickle.dumps(kind("b0:8123", "put orders", 500, text)))
        assert error.may_be_stored is may_be_stored


@pytest.mark.parametrize(
    ("step", "text", "may_be"),
    [
        ("COMMIT_ONE_PHASE", "transaction 'x' is committed, and readable once the broker can store its messages", True),
        ("COMMIT_ONE_PHASE", "the outcome of transaction 'x' is known after a restart", True),
        ("COMMIT_ONE_PHASE", "Cannot call commit now.", False),
        ("ROLLBACK", "transaction 'x' is committed, and readable once the broker can store its messages", False),
    ],
)
def test_the_messages_of_a_commit_that_is_done_may_be_stored(step: str, text: str, may_be: bool) -> None:
    error = TransactionError("b0:8123", f"transaction {step}", 500, text)
    assert error.may_be_stored is may_be
    assert not error.retryable


@pytest.mark.parametrize(
    ("unanswered", "reason", "said"),
    [
        (False, "refused", ""),
        (True, "the connection was lost", "; what was not acknowledged may be stored"),
        (True, "no slave; it may be stored", ""),
        (True, "refused; others may be stored: lost", "; what was not acknowledged may be stored"),
        (True, "an earlier attempt was not acknowledged, and may have stored them", ""),
    ],
)
def test_a_failed_send_says_what_may_be_stored(unanswered: bool, reason: str, said: str) -> None:
    error = SendFailed("t", reason, False, ("stored", None), unanswered)
    assert str(error) == f"topic 't': 1 of 2 messages were acknowledged: {reason}{said}"


def test_an_unknown_code_is_not_tried_again() -> None:
    error = BrokerError("b0:8123", "put orders", 499, "")
    assert (str(error), error.retryable) == ("broker b0:8123 refused put orders with 499: no reason given", False)
