"""Which broker pushes a reply, and which error counts if none does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.replies import send_reply
from metaq.errors import ConnectionFailed, FieldError, MetaqError, WrongServer
from metaq.net.identification import HTTP, ROCKETMQ

WRONG, AWAY = WrongServer("a:1", ROCKETMQ, HTTP), ConnectionFailed("b:1", "connect", "refused")
REFUSED = RequestRefused("c:1", "a reply", 1, "the producer is gone")
TOO_LONG = FieldError("SEND_MESSAGE", "topic", "x", "shorter")


def send(outcomes: Mapping[str, MetaqError | None]) -> list[str]:
    """Send a reply to brokers with these outcomes; return which were asked."""
    asked: list[str] = []

    @contextmanager
    def lease(name: str) -> Iterator[Any]:
        def ask(*_: object) -> None:
            asked.append(name)
            if (failure := outcomes[name]) is not None:
                raise failure

        yield SimpleNamespace(ask=ask)

    pool: Any = SimpleNamespace(lease=lease)
    routes: Any = SimpleNamespace(namespace=None, write_address=lambda name: name)
    send_reply(pool, routes, outcomes, "g", "topic", b"body", {})
    return asked


@pytest.mark.parametrize("failure", [WRONG, AWAY, REFUSED])
def test_the_next_broker_is_asked(failure: MetaqError) -> None:
    assert send({"first": failure, "second": None}) == ["first", "second"]


@pytest.mark.parametrize(
    ("failures", "raised"),
    [((WRONG, AWAY), AWAY), ((AWAY, WRONG), AWAY), ((AWAY, REFUSED), REFUSED), ((WRONG, WRONG), WRONG)],
)
def test_a_refusal_counts_or_else_what_may_pass(failures: tuple[MetaqError, MetaqError], raised: MetaqError) -> None:
    with pytest.raises(MetaqError) as caught:
        send(dict(zip(("first", "second"), failures, strict=True)))
    assert caught.value is raised


def test_a_message_that_does_not_fit_is_not_sent_to_others() -> None:
    with pytest.raises(FieldError):
        send({"first": TOO_LONG, "second": None})
