"""Headers of RocketMQ's clients, as simple as they can be, and what a reader makes of one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from metaq.errors import ProtocolError
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, PullMessage
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.remoting.json_header import read_json

Read = Callable[[bytes, bytes], RemotingCommand]

UNUSUAL_OPAQUES: Final = ("007", "0", "-7", "7.0", "2147483648", '"7"', "7 ")

_RECORDED: Final = Path(__file__).parents[1] / "golden" / "rocketmq" / "clients_java497.jsonl"

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


def outcome(read: Read, text: str | bytes) -> RemotingCommand | str:
    """The command that ``read`` returns, or the text of its error."""
    data = text if isinstance(text, bytes) else text.encode()
    try:
        return read(data, b"body")
    except ProtocolError as error:
        return str(error)


def broken(header: str) -> list[str]:
    """Headers that are not whole, have more behind them, or no opaque."""
    return [header.replace("}", "", 1), header + " ", header[:-1], header.replace('"opaque":5,', "")]


def check_changed_bytes(read: Read, header: Callable[[random.Random], str], changes: bytes, seed: int) -> None:
    """See that ``read`` does what ``read_json`` does with headers of which up to two bytes were changed."""
    dice = random.Random(seed)
    for _ in range(2000):
        data = bytearray(header(dice).encode())
        for _ in range(dice.randrange(3)):
            data[dice.randrange(len(data))] = dice.choice(changes)
        assert outcome(read, bytes(data)) == outcome(read_json, bytes(data))


def check_recorded(read: Read, codes: tuple[int, ...]) -> int:
    """See that ``read`` does so with what Java's clients have sent; return how many requests had one of ``codes``."""
    count = 0
    for line in map(json.loads, _RECORDED.read_text().splitlines()):
        if line.get("from") == "client" and "header" in line:
            data = json.dumps(line["header"], separators=(",", ":")).encode()
            assert outcome(read, data) == outcome(read_json, data)
            count += line["header"]["code"] in codes
    return count
