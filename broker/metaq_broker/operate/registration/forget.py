"""``metaq-broker forget``: removes a broker that will never return from ZooKeeper.

A stopped broker stays known there: readers must not consider its messages lost, and an exactly-once write must not
overlook its transactions. So if it is gone for good, an operator has to say so.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from metaq.discovery.zk_layout import ZooKeeperAddress, ZooKeeperLayout
from metaq.errors import MetaqError
from metaq.model import BROKER_ID_MAX

if TYPE_CHECKING:
    from metaq.discovery.zk_client import ZooKeeperClient

TIMEOUT_S: Final = 10.0


def add_forget_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    forget = commands.add_parser("forget", help="remove a broker that will never return from ZooKeeper")
    forget.add_argument("--zookeeper", required=True, type=_zookeeper, metavar="HOST:PORT,.../ROOT", help="where")
    forget.add_argument("broker_id", type=_broker_id, metavar="BROKER_ID", help="of the broker that is gone")
    forget.set_defaults(command=_forget, log_level="error", log_format="text")


def _forget(options: argparse.Namespace) -> int:
    from metaq.discovery.zk_client import connected  # imported here: other commands need no ZooKeeper

    address, broker_id = options.zookeeper, options.broker_id
    try:
        with connected(address.hosts, TIMEOUT_S) as client:
            refusal = forget_broker(client, ZooKeeperLayout(address.root), broker_id)
    except MetaqError as error:
        refusal = str(error)
    if refusal is not None:
        print(f"metaq-broker: {refusal}", file=sys.stderr)
        return 1
    print(f"broker {broker_id} is forgotten at {address}")
    return 0


def forget_broker(client: ZooKeeperClient, layout: ZooKeeperLayout, broker_id: int) -> str | None:
    """Delete the nodes that a broker has left behind; return why that is not possible, or ``None``.

    Raises:
        ZooKeeperAway, ZooKeeperRefused: ZooKeeper did not do it.
    """
    parent, member = layout.broker(broker_id), layout.member(broker_id)
    [running] = client.children([parent])
    if running:
        return f"broker {broker_id} is registered as running ({', '.join(running)}); stop it first"
    if client.read([parent, member]) == [None, None]:
        return f"no broker {broker_id} is known there"
    if client.delete([parent, layout.member_topics(broker_id), member]):
        return f"broker {broker_id} has just been started again"
    return None


def _zookeeper(text: str) -> ZooKeeperAddress:
    try:
        return ZooKeeperAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _broker_id(text: str) -> int:
    if not text.isdecimal() or int(text) > BROKER_ID_MAX:
        raise argparse.ArgumentTypeError(f"broker id {text!r}: expected 0..{BROKER_ID_MAX}")
    return int(text)
