"""A client with PyPI ``rocketmq``, which bundles RocketMQ's C++ library; it speaks the protocol of ``conversation``.

Arguments: nameServers role=producer|push|ordered group; topic tags=* for consumers. It runs in an environment of its
own with only that package.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer, SendStatus

DEADLINE_MS = 10_000
_lock = threading.Lock()


def say(event: str, **fields: object) -> None:
    line = "\t".join([event, *(f"{key}={value}" for key, value in fields.items())])
    with _lock:
        print(line, flush=True)


def parsed(words: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def text(value: bytes | None) -> str:
    return value.decode() if value else ""


def message(command: Mapping[str, str], body: str) -> Any:
    made = Message(command["topic"])
    made.set_body(body)
    if "tag" in command:
        made.set_tags(command["tag"])
    if "key" in command:
        made.set_keys(command["key"])
    if "delay" in command:
        made.set_delay_time_level(int(command["delay"]))
    if "property" in command:
        made.set_property("property", command["property"])
    return made


def send(producer: Any, command: Mapping[str, str]) -> Any:
    if "bodies" in command:
        return producer.send_batch([message(command, body) for body in command["bodies"].split(",")])
    made = message(command, command["body"])
    if "order" in command:
        return producer.send_orderly(made, int(command["order"]))
    return producer.send_sync(made)


def produce(given: Mapping[str, str]) -> None:
    producer = Producer(given["group"], timeout=DEADLINE_MS)
    producer.set_namesrv_addr(given["nameServers"])
    producer.start()
    say("ready")
    for line in sys.stdin:
        if line.strip() == "close":
            break
        try:
            result = send(producer, parsed(line.rstrip("\n").split("\t")[1:]))
            if result.status != SendStatus.OK:
                raise RuntimeError(result.status.name)
            say("sent", id=result.msg_id, queue="", offset=result.offset, place="")
        except Exception as reason:
            say("failed", reason=" ".join(str(reason).split()) or type(reason).__name__)
    producer.shutdown()


def report(reason: Any) -> None:
    if reason.exc_type is not Redeliver:
        sys.__unraisablehook__(reason)


class Redeliver(Exception):
    """Makes the library ask for the message again."""


def consume(given: Mapping[str, str]) -> None:
    def taken(received: Any) -> None:
        body = text(received.body)
        say(
            "message",
            queue=received.queue_id,
            offset=received.queue_offset,
            tag=text(received.tags),
            key=text(received.keys),
            property=text(received.get_property("property")),
            times=received.reconsume_times,
            body=body,
        )
        if body.startswith("fail"):
            raise Redeliver

    # ctypes prints an exception of a callback to standard error and continues; this one is intended.
    sys.unraisablehook = report
    consumer = PushConsumer(given["group"], orderly=given["role"] == "ordered")
    consumer.set_namesrv_addr(given["nameServers"])
    consumer.subscribe(given["topic"], taken, given.get("tags", "*"))
    consumer.start()
    say("ready")
    for line in sys.stdin:
        if line.strip() == "close":
            break
    consumer.shutdown()


if __name__ == "__main__":
    arguments = parsed(sys.argv[1:])
    produce(arguments) if arguments["role"] == "producer" else consume(arguments)
    say("closed")
    sys.stdout.flush()
