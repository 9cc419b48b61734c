"""Headers and requests of RocketMQ's clients, as simple as they can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metaq.protocols.remoting.bodies.groups import HeartbeatData, ProducerData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, PullMessage
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.remoting.headers.transactions import COMMIT, EndTransaction

_SEND = SendMessage(
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
_PULL = PullMessage(
    consumer_group="G",
    topic="t",
    queue_id=0,
    queue_offset=0,
    max_msg_nums=32,
    sys_flag=SUBSCRIPTION,
    commit_offset=0,
    suspend_timeout_millis=0,
    subscription="*",
    sub_version=0,
    expression_type="TAG",
)


def send_header(**changes: Any) -> SendMessage:
    """The header of a send to queue 0 of ``t``, unless something else is given."""
    return replace(_SEND, **changes)


def pull_header(queue_offset: int, **changes: Any) -> PullMessage:
    """The header of a pull from queue 0 of ``t``, of any tag and without waiting, unless something else is given."""
    return replace(_PULL, queue_offset=queue_offset, **changes)


def commit_of(ordinal: str, place: int, opaque: int) -> RemotingCommand:
    """A request of the producer group ``shop`` that commits the half message with this queue offset and position."""
    header = EndTransaction(
        producer_group="shop",
        msg_id="U",
        tran_state_table_offset=int(ordinal),
        commit_log_offset=place,
        commit_or_rollback=COMMIT,
    )
    return to_request(header, opaque=opaque)


def heartbeat_of_shop(opaque: int) -> RemotingCommand:
    """The heartbeat of a producer of the group ``shop``."""
    body = HeartbeatData(client_id="1", producer_data_set=(ProducerData(group_name="shop"),)).to_json()
    return to_request(HeartBeat(), body, opaque=opaque)
