"""Attributes of topics (5.x): ``+message.type=DELAY,-other``. A broker keeps the type of the messages, for clients.

The proxy of 5.x and its clients refuse messages of another type; brokers do not. The other attributes choose how a
broker stores a topic: here only the usual values are possible, and they change nothing.
"""

from __future__ import annotations

from typing import Final

MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
ONLY_VALUES: Final = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE", "reserve.time": "-1"}


def changed_type(before: str, changes: str) -> str:
    """Return the type of a topic's messages after changes to its attributes; ``before`` is empty without a type.

    Raises:
        ValueError: A change is not possible.
    """
    found = before
    for change in filter(None, changes.split(",")):
        name, _, value = change[1:].partition("=")
        if change[0] not in "+-" or not name or bool(value) is (change[0] == "-"):
            raise ValueError(f"attributes {change!r}; expected +NAME=VALUE and -NAME, with commas between them")
        if name == MESSAGE_TYPE:
            if value and value not in MESSAGE_TYPES:
                raise ValueError(f"{MESSAGE_TYPE} {value!r}; expected {', '.join(MESSAGE_TYPES)}")
            found = value
        elif name not in ONLY_VALUES:
            raise ValueError(f"attribute {name!r}; expected {', '.join([MESSAGE_TYPE, *ONLY_VALUES])}")
        elif value and value != ONLY_VALUES[name]:
            raise ValueError(f"{name} {value!r}; expected {ONLY_VALUES[name]}")
    return found
