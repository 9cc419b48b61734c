"""``metaq-broker ctl``: sends a command to the broker that uses a data folder, and prints the result.

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
from metaq_broker.operate.control.client import ControlClient, NoAnswer, NoBroker
from metaq_broker.operate.control.commands import ACTIONS
from metaq_broker.operate.control.messages import MALFORMED, CommandRefused, ControlRequest
from metaq_broker.text.stats_command import addresses, ask_stats

EXIT_OK, EXIT_REFUSED, EXIT_USAGE, EXIT_NO_BROKER = 0, 1, 2, 3
TIMEOUT_S: Final = 60.0


class BrokerElsewhere(MetaqError):
    """The broker of ``--brokers`` does not answer, or is not on this machine."""


def add_ctl_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ctl = commands.add_parser("ctl", help="administer a running broker")
    _add_common(ctl)
    ctl.set_defaults(command=lambda options: run_ctl(options) if options.action else _usage(ctl))
    actions = ctl.add_subparsers(metavar="ACTION", dest="action")
    for row in ACTIONS.values():
        parser = actions.add_parser(row.name, help=row.help)
        _add_common(parser, default=argparse.SUPPRESS)
        for argument in row.arguments:
            argument.add(parser)


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
        raise argparse.ArgumentTypeError(f"{text!r}: ctl administers one broker at a time")
    return found[0]


def _usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def run_ctl(options: argparse.Namespace) -> int:
    """Carry out one ``ctl`` command line; return the exit status.

    Raises:
        ConfigError: The file of ``-f`` does not name a data folder.
    """
    if options.data is None and options.file is None and options.brokers is None:
        choice = "--data DIR, -f server.ini or --brokers HOST:PORT"
        print(f"metaq-broker: ctl needs {choice}, to choose the broker", file=sys.stderr)
        return EXIT_USAGE
    try:
        result = _ask(_directory(options), options)
    except CommandRefused as refused:
        return _complain(refused.kind, refused, options.json, EXIT_USAGE if refused.kind == MALFORMED else EXIT_REFUSED)
    except (NoBroker, BrokerElsewhere) as error:
        return _complain("no_broker", error, options.json, EXIT_NO_BROKER)
    except NoAnswer as error:
        return _complain("no_answer", error, options.json, EXIT_NO_BROKER)
    _print([json.dumps(result, indent=2)] if options.json else ACTIONS[options.action].lines(result))
    failed = options.action == "retention" and any(row["failure"] for row in result["removed"])
    return EXIT_REFUSED if failed else EXIT_OK


def _directory(options: argparse.Namespace) -> Path:
    """Return the data folder that the arguments name."""
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
    sent = {name: value for each in ACTIONS[options.action].arguments for name, value in each.send(options).items()}
    client = ControlClient(directory, options.timeout)
    try:
        result = client.ask(ControlRequest(options.action, sent))
        if options.action == "shutdown" and options.wait:
            client.wait_for_end()
            result["stopped"] = True
        return result
    finally:
        client.close()


def _complain(kind: str, error: Exception, as_json: bool, status: int) -> int:
    if as_json:
        _print([json.dumps({"error": {"kind": kind, "text": str(error)}}, indent=2)])
    print(f"metaq-broker: {error}", file=sys.stderr)
    return status


def _print(lines: list[str]) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:  # a topic's name may have characters that this terminal cannot show
        print(line.encode(encoding, "backslashreplace").decode(encoding))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.001 to 86400")
    return seconds
