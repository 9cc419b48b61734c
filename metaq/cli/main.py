"""The command ``metaq``: arguments, exit status, and error messages.

Exit status: 0 done, 1 failed, 2 wrong arguments or profile, 130 interrupted, 141 the reader of the output went away.

Source: docs/cli.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

import metaq
from metaq.cli.commands import all_commands
from metaq.cli.parser import SuggestingParser, suggestion
from metaq.cli.profile import DEFAULT_CLUSTER, CommandProfile, ProfileError, parse_timeout, read_profile
from metaq.cli.streams import abandon_output, complain, give_up_output, output_failure, prepare_output

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141

_DESCRIPTION: Final = "Sends, shows and counts messages of MetaQ and RocketMQ brokers."
_EXAMPLES: Final = """\
examples:
  printf 'one tea\\ntwo scones\\n' | metaq produce orders
  metaq consume orders --follow
  metaq --cluster rocketmq://127.0.0.1:9876 topics
  metaq help consume
"""
_CLUSTER_HELP: Final = (
    "host:port,... of MetaQ brokers, zk://host:port/root, or rocketmq://host:port,... of RocketMQ's name servers "
    f"(default: $METAQ_CLUSTER, else the profile's, else {DEFAULT_CLUSTER})"
)
_PROFILE_HELP: Final = "section of the configuration file (default: $METAQ_PROFILE)"
_TIMEOUT_HELP: Final = "how long to wait for an answer (default: 30)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status.

    Raises:
        SystemExit: The arguments are wrong, or ask for help.
    """
    try:
        prepare_output()
        options = _parse(arguments)
        if "run" not in options:
            whole_parser().print_help(sys.stderr)
            return EXIT_USAGE
        return _run(options)
    except BrokenPipeError:
        abandon_output()
        return EXIT_PIPE
    except OSError as error:  # the help could not be written
        return _fail(_reason(error), EXIT_FAILED)
    except KeyboardInterrupt:
        give_up_output()
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    from metaq.errors import MetaqError

    try:
        timeout = None if options.timeout is None else parse_timeout(options.timeout)
        profile = read_profile(options.profile, options.cluster, timeout)
        run: Callable[[argparse.Namespace, CommandProfile], int] = options.run
        status = run(options, profile)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        raise
    except UnicodeEncodeError as error:
        return _fail(f"{error.object!r} is not UTF-8", EXIT_USAGE)
    except (ProfileError, ValueError) as error:
        return _fail(str(error), EXIT_USAGE)
    except MetaqError as error:
        return _fail(str(error), EXIT_FAILED)
    except OSError as error:
        return _fail(_reason(error), EXIT_FAILED)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. Items of a list may stand before and after options, which argparse does not support."""
    parser = whole_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    if (wrong := _unknown_in_front(parser, given)) is not None:
        of_commands = {name for row in all_commands().values() for each in row.options() for name in each.names}
        near = "" if wrong in of_commands else suggestion(wrong, parser._option_string_actions)
        advice = near or "; options of a command come after its name"
        parser.exit(EXIT_USAGE, f"metaq: there is no option {wrong!r} in front of the command{advice}\n")
    try:
        options, behind = parser.parse_known_args(given)
    except SystemExit:
        sys.stdout.flush()  # flush the help while a closed output can still change the exit status
        raise
    if behind and ("list_name" not in options or any(one.startswith("-") for one in behind)):
        parser.error(_unrecognized(behind, options))
    if behind:
        setattr(options, options.list_name, [*getattr(options, options.list_name), *behind])
    return options


def _unknown_in_front(parser: argparse.ArgumentParser, given: Sequence[str]) -> str | None:
    """Return the first option in front of the command that does not exist: ``argparse`` takes its value for the
    command.
    """
    known, rest = parser._option_string_actions, iter(given)
    for one in rest:
        if not one.startswith("-") or one == "--":
            return None
        name, has_value, _ = one.partition("=")
        if not one.startswith("--"):  # the value may stand after the letter
            name, has_value = one[:2], one[2:]
        action = known.get(name) or next((known[each] for each in known if each.startswith(name)), None)
        if action is None:
            return name
        if action.nargs != 0 and not has_value:
            next(rest, None)
    return None


def _unrecognized(given: Sequence[str], options: argparse.Namespace) -> str:
    """Return the sentence for arguments that the command does not have."""
    name = next((name for name, row in all_commands().items() if row.run is getattr(options, "run", None)), None)
    wrong = next((one for one in given if one.startswith("-")), None)
    if name is None or wrong is None:
        return f"unrecognized arguments: {' '.join(given)}"
    option = wrong.partition("=")[0]
    known = [known for each in all_commands()[name].options() for known in each.names]
    return f"{name} has no option {option!r}{suggestion(option, known) or f'; metaq help {name} lists them'}"


def _fail(text: str, status: int) -> int:
    give_up_output()
    complain(text)
    return status


def _reason(error: OSError) -> str:
    """Return the reason of an error, with the file, which may be the standard output."""
    if error.filename is not None:
        return f"{error.strerror}: {error.filename!r}"
    failure = output_failure()
    return f"the standard output cannot be written: {failure}" if failure else error.strerror or str(error)


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = SuggestingParser(
        prog="metaq",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"metaq {metaq.__version__}")
    _add_cluster(parser, None)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for row in all_commands().values():
        command = commands.add_parser(row.name, help=row.help)
        for each in row.arguments:
            each.add(command)
        command.set_defaults(run=row.run, **({"list_name": row.list_name} if row.list_name else {}))
        _add_cluster(command.add_argument_group("cluster"), argparse.SUPPRESS)
    return parser


def _add_cluster(parser: argparse._ActionsContainer, default: str | None) -> None:
    """Add the options that are allowed before and after a command."""
    parser.add_argument("-c", "--cluster", metavar="CLUSTER", default=default, help=_CLUSTER_HELP)
    parser.add_argument("--profile", metavar="NAME", default=default, help=_PROFILE_HELP)
    parser.add_argument("--timeout", metavar="SECONDS", default=default, help=_TIMEOUT_HELP)


if __name__ == "__main__":
    raise SystemExit(main())
