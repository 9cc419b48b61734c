"""Sends of RocketMQ's clients, as simple as they can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metaq.protocols.remoting.headers.sends import SendMessage

_SIMPLE = SendMessage(
    producer_group="PG",
    topic="t",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=0,
    sys_flag=0,
    born_timestamp=1,
    flag=0,
    properties="",
    reconsume_times=0,
    unit_mode=False,
    batch=None,
)


def send_header(**changes: Any) -> SendMessage:
    """The header of a send to queue 0 of ``t``, unless something else is given."""
    return replace(_SIMPLE, **changes)
