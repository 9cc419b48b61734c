"""Types of command-line arguments that several jobs take."""

from __future__ import annotations

import argparse
import re
from typing import Any


def pattern(text: str) -> str:
    """A regular expression of Python's, for argparse."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not a regular expression ({error})") from None
    return text


def add_source(parser: Any) -> None:
    """``--brokers`` of MetaQ or ``--rocketmq`` name servers: one of them."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--brokers", help="host:port of the MetaQ brokers, separated by commas")
    where.add_argument(
        "--rocketmq", metavar="NAME_SERVERS", help="host:port of RocketMQ's name servers, separated by ;"
    )


def queue_system(arguments: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """The format that ``add_source``'s arguments name, and the option by which its brokers are found."""
    if arguments.rocketmq is not None:
        return "rocketmq", {"nameServers": arguments.rocketmq}
    return "metaq", {"brokers": arguments.brokers}
