"""``metaq-broker stats``: asks brokers, also Java brokers, for their statistics over the network.

Source: docs/administration.md, "Watching it".
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from metaq import ports
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.model import Address
from metaq.protocols.text.commands import Stats

EXIT_OK, EXIT_FAILED = 0, 1
DEFAULT_BROKER: Final = ports.METAQ_HERE


def add_stats_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stats = commands.add_parser("stats", help="statistics of running brokers, over the network")
    stats.add_argument(
        "--brokers", type=addresses, default=DEFAULT_BROKER, metavar="HOST:PORT,...", help="default %(default)s"
    )
    stats.add_argument("item", nargs="?", default="", metavar="ITEM", help="`help` lists them; default: the broker")
    stats.set_defaults(command=_stats)


def addresses(text: str) -> list[Address]:
    """Parse ``HOST:PORT,HOST:PORT``, for argparse."""
    try:
        return [Address.parse(one.strip()) for one in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ask_stats(address: Address, item: str) -> str:
    """Return a broker's answer to ``stats ITEM``.

    Raises:
        MetaqError: There is no broker, or it does not answer.
    """
    session = Session.connect(address)
    try:
        return session.ask(Stats(item, 0))
    finally:
        session.close("answered")


def _stats(options: argparse.Namespace) -> int:
    status = EXIT_OK
    for address in options.brokers:
        try:
            text = ask_stats(address, options.item)
        except (MetaqError, ValueError) as error:
            print(f"metaq-broker: {error}", file=sys.stderr)
            status = EXIT_FAILED
            continue
        if len(options.brokers) > 1:
            print(f"broker {address}")
        print(text.rstrip())
    return status
