"""Attributes of topics, as administrators of 5.x write them."""

from __future__ import annotations

import pytest
from metaq_broker.rocketmq.administration.topic_attributes import changed_type


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("", "", ""),
        ("FIFO", "", "FIFO"),
        ("", "+message.type=DELAY", "DELAY"),
        ("FIFO", "-message.type", ""),
        ("FIFO", "+queue.type=SimpleCQ,+cleanup.policy=DELETE", "FIFO"),
        ("FIFO", "-reserve.time,+message.type=NORMAL", "NORMAL"),
    ],
)
def test_the_type_of_messages_is_kept(before: str, changes: str, after: str) -> None:
    assert changed_type(before, changes) == after


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ("message.type=FIFO", "attributes 'message.type=FIFO'; expected +NAME=VALUE and -NAME"),
        ("+message.type", "expected +NAME=VALUE"),
        ("-message.type=FIFO", "expected +NAME=VALUE"),
        ("+", "expected +NAME=VALUE"),
        ("+message.type=LITE", "message.type 'LITE'; expected UNSPECIFIED, NORMAL, FIFO, DELAY"),
        ("+queue.type=BatchCQ", "queue.type 'BatchCQ'; expected SimpleCQ"),
        ("+colour=red", "attribute 'colour'; expected message.type, queue.type"),
    ],
)
def test_what_cannot_be_is_named(changes: str, text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("+", r"\+")):
        changed_type("FIFO", changes)
