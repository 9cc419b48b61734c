"""Records whose slots are set directly behave as the dataclasses that they are."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from metaq.client.records import Received, Sent, made_directly
from metaq.model import Partition

SENT = Sent(topic="orders", partition=Partition(0, 1), offset=20, message_id=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A record with a default."""

    number: int
    text: str | None = None


def test_the_signature_and_the_defaults_are_those_of_the_dataclass() -> None:
    before = inspect.signature(Plain)
    direct = made_directly(Plain)
    assert inspect.signature(direct) == before
    assert (direct(number=1).text, direct(number=1, text="a").text) == (None, "a")
    assert inspect.signature(Received).parameters["properties"].default is None


@pytest.mark.parametrize("given", [{}, {"number": 1, "more": 2}], ids=["too few", "too many"])
def test_what_is_missing_or_unknown_is_named(given: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"number|more"):
        made_directly(Plain)(**given)  # type: ignore[arg-type]


def test_records_stay_immutable_comparable_and_can_be_copied() -> None:
    with pytest.raises(FrozenInstanceError):
        SENT.offset = 1  # type: ignore[misc]
    assert replace(SENT, offset=40).offset == 40
    assert replace(SENT) == SENT == pickle.loads(pickle.dumps(SENT))
    assert len({SENT, replace(SENT)}) == 1
    assert repr(SENT).startswith("Sent(topic='orders', ")
