"""``metaq-broker begin-pair``: makes a data folder the beginning of a pair, with all that it has.

For a pair whose record in ZooKeeper is lost, for a backup to go back to on purpose, and for the folder of a broker that
was used without ``[pair]``. Everything else that a member could do itself would risk what was acknowledged: which of
two folders has it, only an operator may know.

Refused while a broker uses the folder, and while a member may run: one is alive in ZooKeeper, or a host does not refuse
connections at the address of one. Each step may be repeated after a crash.

Source: docs/replication.md, "Begin a pair anew".
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.discovery.zk_layout import ZooKeeperLayout
from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import LOCK_NAME
from metaq_broker.log.streams import epochs, member
from metaq_broker.operate.config.configuration import BrokerConfig, load
from metaq_broker.operate.config.replication import PairConfig
from metaq_broker.replication.pair.record import PairRecord

if TYPE_CHECKING:
    from metaq.discovery.zk_client import ZooKeeperClient

TIMEOUT_S: Final = 10.0

CONNECT_S: Final = 3.0
"""Longest wait for the refusal of a connection."""

FILES: Final = (epochs.FILE_NAME, member.LEFT_NAME, member.FILE_NAME)
"""What makes a folder a member's, in the order in which it is removed."""


class BeginRefused(Exception):
    """Nothing was changed, or not everything; the text says why, and what to do."""


def add_begin_pair_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    begin = commands.add_parser("begin-pair", help="begin a pair anew with the data of this broker")
    begin.add_argument("-f", "--file", required=True, type=Path, help="the server.ini of the broker whose data is kept")
    begin.add_argument(
        "--other-is-gone", action="store_true", help="the machine of the other member is down for good: do not ask it"
    )
    begin.set_defaults(command=_begin, log_level="error", log_format="text")


def _begin(options: argparse.Namespace) -> int:
    config = load(options.file)
    try:
        begin_pair(config, others_are_gone=options.other_is_gone)
    except (BeginRefused, MetaqError) as error:
        print(f"metaq-broker: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"metaq-broker: {error.filename or 'the data'}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"broker {config.system.broker_id} begins its pair with {config.system.data_path}: start it, and then the "
          "other member, with an empty data folder")  # fmt: skip
    return 0


def begin_pair(config: BrokerConfig, *, others_are_gone: bool = False) -> None:
    """Forget the pair of ``config``, in ZooKeeper and in the data folder, whose messages stay.

    Raises:
        BeginRefused: A member may run, or the configuration is of no pair.
        ZooKeeperAway, ZooKeeperRefused: ZooKeeper does not do it.
        OSError: The disk refuses.
    """
    from metaq.discovery.zk_client import connected  # imported here: other commands need no ZooKeeper

    if not isinstance(config.role, PairConfig):
        raise BeginRefused("its server.ini has no section [pair]")
    files, folder = Files(), Path(config.system.data_path)
    if not folder.is_dir():
        raise BeginRefused(f"{folder} does not exist: there is nothing to begin a pair with")
    try:
        lock = files.lock_exclusive(folder / LOCK_NAME)
    except BlockingIOError:
        raise BeginRefused(f"a broker is using {folder}; stop it first") from None
    try:
        with connected(config.zookeeper.address.hosts, TIMEOUT_S) as client:
            layout = ZooKeeperLayout(config.zookeeper.address.root)
            others = _members(client, layout, config.system.broker_id) | {config.role.other}
            if not others_are_gone:
                own = Address(config.system.host_name, config.system.server_port)
                _require_stopped(others - {own})
            _forget(client, layout.pair(config.system.broker_id))
        _remove(files, [folder / name for name in FILES])
    finally:
        files.close(lock)


def _members(client: ZooKeeperClient, layout: ZooKeeperLayout, broker_id: int) -> set[Address]:
    """Return the addresses that the pair's record names. Raises ``BeginRefused`` if a member is alive."""
    path, parent = layout.pair(broker_id), layout.broker(broker_id)
    live, registered = client.children([f"{path}/live", parent])
    if live or "master" in (registered or ()):
        raise BeginRefused("a member of the pair is alive in ZooKeeper; stop both, and wait for the end of its session")
    [node] = client.read([path])
    try:
        record = PairRecord.from_json(b"" if node is None else node.text.encode())
        return {Address.parse(entry.address) for entry in record.members.values()}
    except ValueError:  # the record is lost, or damaged: that may be why a pair is begun anew
        return set()


def _require_stopped(members: Collection[Address]) -> None:
    """Check that the host of each address refuses connections there: then no process listens, frozen or not."""
    for address in sorted(members, key=str):
        try:
            socket.create_connection((address.host, address.port), CONNECT_S).close()
        except ConnectionRefusedError:
            continue
        except OSError as error:
            raise BeginRefused(
                f"it is not known whether the member at {address} is stopped ({error.strerror or error}); make its "
                "machine reachable, or be sure that it is down for good, and say --other-is-gone"
            ) from error
        raise BeginRefused(f"a process listens at {address}, the address of a member; stop it first")


def _forget(client: ZooKeeperClient, path: str) -> None:
    if client.delete([f"{path}/live"]) or client.delete([path]):
        raise BeginRefused("a member has just been started; stop it first")


def _remove(files: Files, paths: Iterable[Path]) -> None:
    for path in paths:
        if files.exists(path):
            files.unlink(path)
            files.fsync_dir(path.parent)
