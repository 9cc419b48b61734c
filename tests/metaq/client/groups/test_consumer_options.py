"""Options of a consumer: what is refused, before anything is opened."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from metaq.client.groups.options import ConsumerOptions


@pytest.mark.parametrize(
    ("options", "says"),
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
    ],
)
def test_wrong_options_are_named_before_anything_is_opened(options: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"group": "g", "topics": ["orders"]} | options
    with pytest.raises((ValueError, TypeError), match=says):
        ConsumerOptions(**given)
