"""Types of command-line arguments that several jobs take."""

from __future__ import annotations

import argparse
import re
from typing import Any


def pattern(text: str) -> str:
    """Check a Python regular expression, for argparse."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not a regular expression ({error})") from None
    return text


def duration(text: str) -> str:
    """Check a Spark interval such as ``5 minutes``, for argparse."""
    if not re.fullmatch(r"[1-9]\d* (second|minute|hour|day)s?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a duration such as '30 seconds', '5 minutes' or '1 hour'")
    return text


def add_trigger(parser: Any) -> None:
    """Add ``--every``: how often a query has a batch."""
    parser.add_argument("--every", type=duration, help="keep running, a batch this often; otherwise stop at the end")


def trigger(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``DataStreamWriter.trigger`` for ``--every``."""
    return {"processingTime": arguments.every} if arguments.every else {"availableNow": True}


def add_source(parser: Any) -> None:
    """Add ``--brokers`` (MetaQ) and ``--rocketmq`` (name servers), of which one must be given."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--brokers", help="host:port of the MetaQ brokers, separated by commas")
    where.add_argument(
        "--rocketmq", metavar="NAME_SERVERS", help="host:port of RocketMQ's name servers, separated by ;"
    )


def queue_system(arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the format that the arguments of ``add_source`` select, and its option for finding the brokers."""
    if arguments.rocketmq is not None:
        return "rocketmq", {"nameServers": arguments.rocketmq}
    return "metaq", {"brokers": arguments.brokers}
