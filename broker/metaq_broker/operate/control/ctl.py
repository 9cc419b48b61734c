"""``metaq-broker ctl``: asks the broker that uses a data folder to do something, and says how it went.

Exit status: 0 done, 1 refused or failed, 2 wrong arguments, 3 no broker there or no answer. With ``--json`` the result,
or ``{"error": {...}}``, is one JSON document on standard output.

Source: docs/administration.md, "Operating a running broker".
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from metaq.errors import MetaqError
from metaq.model import Address
from metaq_broker.operate.config.configuration import data_path_in, data_path_of
from metaq_broker.operate.control.answers import ANSWERS
from metaq_broker.operate.control.client import ControlClient, NoAnswer, NoBroker
from metaq_broker.operate.control.messages import MALFORMED, CommandRefused, Request
from metaq_broker.text.stats_command import addresses, ask_stats

EXIT_OK, EXIT_REFUSED, EXIT_USAGE, EXIT_NO_BROKER = 0, 1, 2, 3
TIMEOUT_S: Final = 60.0


class BrokerElsewhere(MetaqError):
    """The broker that ``--brokers`` names does not answer, or is not on this machine."""


def add_ctl_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``ctl`` to the commands of ``metaq-broker``."""
    ctl = commands.add_parser("ctl", help="look after a running broker")
    _add_common(ctl)
    ctl.set_defaults(command=lambda options: run_ctl(options) if options.action else _usage(ctl))
    actions = ctl.add_subparsers(metavar="ACTION", dest="action")
    for name, text in (
        ("status", "how the broker is"),
        ("topics", "topics, with their sizes and rules"),
        ("transactions", "prepared transactions, and those that were ended by hand"),
        ("reload", "read the configuration file again"),
    ):
        _add(actions, name, text)
    _add(actions, "partitions", "partitions, with their offsets and states").add_argument("topic", nargs="?")
    for name, text in (
        ("close", "refuse puts and gets until they are opened, or the broker starts anew"),
        ("open", "undo close"),
        ("acknowledge", "show lost data of partitions no longer; it stays lost"),
    ):
        _add_partitions(_add(actions, name, text))
    delete = _add(actions, "delete", "remove partitions with their messages")
    _add_partitions(delete)
    delete.add_argument("--force", action="store_true", help="even if they are not closed")
    _add_move(actions)
    reopen = _add(actions, "reopen", "recover a partition that takes no messages")
    reopen.add_argument("topic")
    reopen.add_argument("index", type=_index)
    transaction = _add(actions, "transaction", "end a prepared transaction by hand, or forget that it was")
    transaction.add_argument("step", choices=["commit", "rollback", "complete", "accept", "forget"])
    transaction.add_argument("key", help="as `transactions` lists it")
    retention = _add(actions, "retention", "remove old segments without waiting for deleteWhen")
    retention.add_argument("verb", choices=["run"])
    retention.add_argument("topic", nargs="?")
    clock = _add(actions, "clock", "believe a clock that has jumped: messages are deleted by age again")
    clock.add_argument("verb", choices=["accept"])
    promote = _add(actions, "promote", "make a slave a master, for good")
    promote.add_argument("--force", action="store_true", help="without checking whether its master is running")
    shutdown = _add(actions, "shutdown", "stop the broker, as SIGTERM does")
    shutdown.add_argument("--wait", action="store_true", help="return when it has stopped")


def _add(actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text)
    _add_common(parser, default=argparse.SUPPRESS)
    return parser


def _add_common(parser: argparse.ArgumentParser, **default: Any) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, metavar="DIR", help="the broker's data folder (dataPath)", **default)
    where.add_argument("-f", "--file", type=Path, help="the broker's server.ini, which names the folder", **default)
    where.add_argument("--brokers", type=_address, metavar="HOST:PORT", help="ask the broker for its folder", **default)
    parser.add_argument("--json", action="store_true", help="machine-readable output", **default)
    limit = default or {"default": TIMEOUT_S}
    parser.add_argument("--timeout", type=_seconds, metavar="S", help=f"longest wait, default {TIMEOUT_S:g} s", **limit)


def _address(text: str) -> Address:
    found = addresses(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{text!r}: ctl looks after one broker at a time")
    return found[0]


def _add_partitions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("partitions", type=_range, metavar="INDEX[-INDEX]")


def _add_move(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    move = _add(actions, "move", "give closed partitions other indexes")
    _add_partitions(move)
    target = move.add_mutually_exclusive_group(required=True)
    target.add_argument("--offset", type=int, metavar="K", help="add K to each index")
    target.add_argument("--to", type=_index, metavar="INDEX", help="the first one gets this index")


def _usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def run_ctl(options: argparse.Namespace) -> int:
    """Carry out one ``ctl`` command line; return the exit status.

    Raises:
        ConfigError: The file given with ``-f`` does not tell the data folder.
    """
    if options.data is None and options.file is None and options.brokers is None:
        choice = "--data DIR, -f server.ini or --brokers HOST:PORT"
        print(f"metaq-broker: ctl needs {choice}, to know which broker is meant", file=sys.stderr)
        return EXIT_USAGE
    try:
        result = _ask(_directory(options), options)
    except CommandRefused as refused:
        return _complain(refused.kind, refused, options.json, EXIT_USAGE if refused.kind == MALFORMED else EXIT_REFUSED)
    except (NoBroker, BrokerElsewhere) as error:
        return _complain("no_broker", error, options.json, EXIT_NO_BROKER)
    except NoAnswer as error:
        return _complain("no_answer", error, options.json, EXIT_NO_BROKER)
    _print([json.dumps(result, indent=2)] if options.json else ANSWERS[options.action](result))
    failed = options.action == "retention" and any(row["failure"] for row in result["removed"])
    return EXIT_REFUSED if failed else EXIT_OK


def _directory(options: argparse.Namespace) -> Path:
    """The data folder of the broker that is meant."""
    if options.brokers is None:
        return options.data or data_path_in(options.file)
    try:
        text = ask_stats(options.brokers, "config")
    except MetaqError as error:
        raise BrokerElsewhere(str(error)) from error
    directory = data_path_of(text.encode(), f"stats config of {options.brokers}")
    if not directory.is_dir():
        raise BrokerElsewhere(
            f"broker {options.brokers} has its data in {directory}, which is not on this machine; ctl works on the "
            f"broker's machine, `metaq-broker stats --brokers {options.brokers}` from anywhere"
        )
    return directory


def _ask(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    client = ControlClient(directory, options.timeout)
    try:
        result = client.ask(Request(options.action, _arguments(options)))
        if options.action == "shutdown" and options.wait:
            client.wait_for_end()
            result["stopped"] = True
        return result
    finally:
        client.close()


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if getattr(options, "topic", None) is not None:
        arguments["topic"] = options.topic
    if options.action in ("close", "open", "acknowledge", "delete", "move"):
        arguments["first"], arguments["last"] = options.partitions
    if options.action in ("delete", "promote"):
        arguments["force"] = options.force
    elif options.action == "move":
        arguments["offset"] = options.offset if options.to is None else options.to - options.partitions[0]
    elif options.action == "reopen":
        arguments["index"] = options.index
    elif options.action == "transaction":
        arguments |= {"action": options.step, "key": options.key}
    return arguments


def _complain(kind: str, error: Exception, as_json: bool, status: int) -> int:
    if as_json:
        _print([json.dumps({"error": {"kind": kind, "text": str(error)}}, indent=2)])
    print(f"metaq-broker: {error}", file=sys.stderr)
    return status


def _print(lines: list[str]) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:  # a topic's name may hold what this terminal cannot show
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def _index(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"partition {text!r}: expected an index such as 0")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return _index(first), _index(last) if dash else _index(first)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.001 to 86400")
    return seconds
