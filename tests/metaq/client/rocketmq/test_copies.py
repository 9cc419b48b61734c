"""What is left out of a copy of a received message: the names by which a broker acts, or describes how it stored it."""

from __future__ import annotations

import pytest

from metaq.client.rocketmq.records import RocketReceived
from metaq.model import Partition

DISPATCHING = ["INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "__LITE_TOPIC"]
"""A message with one of these is dispatched to further queues, and a copy would be, too."""


@pytest.mark.parametrize("name", DISPATCHING)
def test_a_copy_is_not_dispatched_again(name: str) -> None:
    received = RocketReceived(
        topic="orders",
        partition=Partition("broker-a", 0),
        offset=0,
        message_id="1",
        offset_message_id="1",
        timestamp_ms=1,
        born_timestamp_ms=1,
        born_host="10.0.0.1:1",
        tag="red",
        keys=(),
        properties={"TAGS": "red", name: "%LMQ%queue", "colour": "red"},
        reconsume_times=0,
        data=b"x",
    )
    assert received.copy().properties == {"colour": "red"}
