"""Options of a consumer: what is refused, before anything is opened."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from examples import in_one_test

from metaq import MetaQ
from metaq.client.groups.options import ConsumerOptions


@in_one_test(
    "options, says",
    [
        ({"topics": "orders"}, "topics 'orders': expected a list"),
        ({"topics": []}, "expected a list of at least one topic"),
        ({"group": "a b"}, "group 'a b': expected a name"),
        ({"max_attempts": 0}, "max_attempts 0: expected 1 or more"),
        ({"dedupe": -1}, "dedupe -1"),
        ({"on_reject": "topic:"}, "on_reject 'topic:': expected 'park', 'drop', 'topic:NAME'"),
        ({"assignment": "sticky"}, "assignment 'sticky': expected range, consistent"),
        ({"save_s": 0}, "save_s 0: expected seconds above 0"),
        ({"drain_s": -1}, "drain_s -1"),
        ({"types": ["a-b"]}, "message type 'a-b'"),
        ({"start": "soon"}, "start 'soon': expected 'earliest', 'latest'"),
        ({"start": datetime(2024, 1, 1)}, "a datetime with a time zone"),
        ({"fetch_bytes": "lots"}, "'lots': expected a number of bytes"),
        ({"fetch_bytes": 0}, "fetch_bytes 0: expected 1.."),
        ({"on_corrupt": "ignore"}, "on_corrupt 'ignore'"),
        ({"topics": ["a", 5]}, r"topics \['a', 5\]: expected a list"),
        ({"topics": iter(["a"])}, "expected a list of at least one topic"),
        ({"group": b"g"}, "group b'g': expected a text"),
        ({"max_attempts": "6"}, "max_attempts '6': expected a number"),
        ({"dedupe": 1.5}, "dedupe 1.5: expected a number"),
        ({"save_s": "5"}, "save_s '5': expected seconds"),
        ({"drain_s": None}, "drain_s None: expected seconds"),
        ({"fetch_bytes": None}, "fetch_bytes None: expected a number of bytes"),
        ({"on_reject": 5}, "on_reject 5: expected a text or a function"),
        ({"assignment": 5}, "assignment 5: expected a text or a function"),
        ({"on_assigned": 5}, "on_assigned 5: expected a function"),
        ({"where": "x"}, "where 'x': expected a function"),
        ({"offsets": 5}, "offsets 5: expected a storage, which has load"),
        ({"consumer_id": 5}, "consumer_id 5: expected a text"),
        ({"parking": 5}, "parking 5: expected a path"),
        ({"auto_ack": "no"}, "auto_ack 'no': expected True or False"),
        ({"types": "paid"}, "types 'paid': expected a list of message types"),
    ],
)
def test_wrong_options_are_named_before_anything_is_opened(options: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"group": "g", "topics": ["orders"]} | options
    with pytest.raises((ValueError, TypeError), match=says):
        ConsumerOptions(**given)


def test_parked_messages_are_handled_again_after_five_minutes() -> None:
    assert ConsumerOptions(group="g", topics=["orders"]).parked_retry_s == 300


@pytest.mark.parametrize("session_s", [0.05, 600.1, 3600])
def test_a_session_that_brokers_would_refuse(session_s: float) -> None:
    with MetaQ("127.0.0.1:1") as mq:
        with pytest.raises(ValueError, match=rf"session_s {session_s}: expected 0.1 to 600 seconds"):
            mq.consumer("g", ["orders"], session_s=session_s)
        mq.consumer("g", ["orders"], session_s=600)
    with MetaQ("zk://127.0.0.1:1/meta") as mq:
        mq.consumer("g", ["orders"], session_s=session_s)
