"""``metaq dlq``: messages that consumers of a group rejected.

With MetaQ they are parked in a file of the consumer's machine, and are removed when they are sent again. RocketMQ's
broker moves them to the topic ``%DLQ%GROUP``, where they stay until they are deleted by age.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from metaq.cli.command import JSON, argument, command
from metaq.cli.output import counted, json_value, note, print_rows, time_text

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.client.groups.parking import Parked, ParkedMessages
    from metaq.client.metaq import MetaQ
    from metaq.client.records import Received
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.records import RocketReceived

_PARKED: Final = ("number", "topic", "partition", "offset", "parked", "reason")
_DEAD: Final = ("number", "topic", "moved", "attempts", "message_id")


@command(
    "dlq",
    "messages that a group gave up: list them, or send them again",
    argument("action", choices=("list", "resend", "discard")),
    argument("group"),
    argument("numbers", nargs="*", default=[], metavar="NUMBER", help="only these, as list shows them"),
    argument("--topic", metavar="TOPIC", help="resend to this topic instead of the message's own"),
    argument("--all", action="store_true", help="all of them, where that must be said"),
    JSON,
    examples=("list g", "resend g --all", "discard g --all"),
    abilities=(
        ("`dlq list`, `resend`", "parked on this machine", "parked on this machine", "the group's topic `%DLQ%`"),
        ("`dlq discard`", "yes", "yes", "no: they go by age"),
    ),
    list_name="numbers",
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.client.metaq import MetaQ

    with profile.connect() as mq:
        if isinstance(mq, MetaQ):
            _parked(mq, options)
        else:
            _dead(mq, options)
    return 0


# ---- MetaQ: parked messages


def _parked(mq: MetaQ, options: argparse.Namespace) -> None:
    numbers = frozenset(map(_number, options.numbers))
    parked = mq.parked(options.group)
    if missing := numbers - {one.number for one in parked} if numbers else ():
        raise ValueError(f"dlq: group {options.group!r} has no parked message {min(missing)}")
    match options.action:
        case "list":
            _list_parked(parked, numbers, options)
        case "resend":
            _resend_parked(mq, parked, numbers, options)
        case _:
            _require_choice(options)
            gone = sum(parked.discard(one.number) for one in list(_chosen(parked, numbers)))
            note(f"{counted(gone)} discarded")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"dlq: {text!r} is no number of a parked message; dlq list shows them")
    return int(text)


def _chosen(parked: ParkedMessages, numbers: frozenset[int]) -> Iterator[Parked[Received]]:
    """Yield the parked messages with these numbers, all without numbers."""
    return (one for one in parked if not numbers or one.number in numbers)


def _require_choice(options: argparse.Namespace) -> None:
    if bool(options.numbers) == options.all:
        raise ValueError(f"dlq {options.action}: name numbers, or --all")


def _list_parked(parked: ParkedMessages, numbers: frozenset[int], options: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = []
    for one in _chosen(parked, numbers):
        message = one.message
        row: dict[str, object] = {"number": one.number, "topic": message.topic, "partition": str(message.partition)}
        row |= {"offset": message.offset, "parked": time_text(one.parked_ms), "reason": one.reason}
        rows.append(row | json_value(message.data) if options.json else row)
    print_rows(rows, _PARKED, as_json=options.json)


def _resend_parked(mq: MetaQ, parked: ParkedMessages, numbers: frozenset[int], options: argparse.Namespace) -> None:
    from metaq.model import Message

    producer, count = mq.producer(), 0
    try:
        for one in _chosen(parked, numbers):
            message = one.message
            producer.send_many(options.topic or message.topic, [Message(message.data, message.attribute)])
            parked.discard(one.number)
            count += 1
    finally:
        note(f"{counted(count)} sent again")


# ---- RocketMQ: the group's topic of dead letters


def _dead(mq: RocketMQ, options: argparse.Namespace) -> None:
    match options.action:
        case "list":
            _list_dead(mq, options)
        case "resend":
            _require_choice(options)
            _resend_dead(mq, options)
        case _:
            from metaq.formats.topic_names import DEAD_PREFIX

            topic = DEAD_PREFIX + options.group
            raise ValueError(f"dlq discard: RocketMQ removes messages of {topic} by their age only")


def _dead_letters(mq: RocketMQ, options: argparse.Namespace) -> Iterator[RocketReceived]:
    """Yield the group's messages: the named ones, or all.

    Raises:
        ValueError: A named message does not exist, or the topic may not be read.
    """
    from metaq.client.rocketmq.dead_letters import DeadMessages

    letters = DeadMessages(mq, options.group)
    if not mq.cluster.partitions(letters.topic):
        text = f"topic {letters.topic!r} may not be read; metaq alter '{letters.topic}' --permissions rw allows it"
        raise ValueError(text)
    yield from (letters.find(number) for number in options.numbers) if options.numbers else letters


def _list_dead(mq: RocketMQ, options: argparse.Namespace) -> None:
    from metaq.client.rocketmq.dead_letters import letter_number, origin_of

    rows: list[dict[str, object]] = []
    for message in _dead_letters(mq, options):
        row: dict[str, object] = {
            "number": letter_number(message),
            "topic": origin_of(message),
            "moved": time_text(message.timestamp_ms),
            "attempts": message.reconsume_times,
            "message_id": message.message_id,
        }
        rows.append(row | {"attribute": message.tag} | json_value(message.data) if options.json else row)
    print_rows(rows, _DEAD, as_json=options.json)


def _resend_dead(mq: RocketMQ, options: argparse.Namespace) -> None:
    from metaq.client.rocketmq.dead_letters import again
    from metaq.formats.topic_names import DEAD_PREFIX

    producer, count = mq.producer(), 0
    try:
        for message in _dead_letters(mq, options):
            topic, copy = again(message, options.topic)
            producer.send_many(topic, [copy])
            count += 1
    finally:
        stay = "it stays" if count == 1 else "they stay"
        note(f"{counted(count)} sent again; {stay} in {DEAD_PREFIX}{options.group}")
