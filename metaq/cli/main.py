"""The command ``metaq``: arguments, exit status, and what a user sees of an error.

Exit status: 0 done, 1 failed, 2 wrong arguments or profile, 130 interrupted, 141 the reader of the output went away.

Source: docs/cli.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import metaq
from metaq.cli.profile import DEFAULT_CLUSTER, Profile, ProfileError, parse_timeout, read_profile

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141

_DESCRIPTION: Final = "Sends, shows and counts messages of MetaQ and RocketMQ brokers."
_CLUSTER_HELP: Final = (
    "host:port,... of MetaQ brokers, zk://host:port/root, or rocketmq://host:port,... of RocketMQ's name servers "
    f"(default: $METAQ_CLUSTER, else the profile's, else {DEFAULT_CLUSTER})"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = _parse(arguments)
    if "run" not in options:
        _parser().print_help(sys.stderr)
        return EXIT_USAGE
    from metaq.errors import MetaqError

    try:
        timeout = None if options.timeout is None else parse_timeout(options.timeout)
        profile = read_profile(options.profile, options.cluster, timeout)
        run: Callable[[argparse.Namespace, Profile], int] = options.run
        status = run(options, profile)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return _end_of_output()
    except UnicodeEncodeError as error:
        return _complain(f"{error.object!r} is not UTF-8", EXIT_USAGE)
    except (ProfileError, ValueError) as error:
        return _complain(str(error), EXIT_USAGE)
    except (MetaqError, OSError) as error:
        return _complain(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; those of a list may stand before and behind options, which argparse does not do."""
    parser = _parser()
    options, behind = parser.parse_known_args(arguments)
    if behind and ("list_name" not in options or any(one.startswith("-") for one in behind)):
        parser.error(f"unrecognized arguments: {' '.join(behind)}")
    if behind:
        setattr(options, options.list_name, [*getattr(options, options.list_name), *behind])
    return options


def _complain(text: str, status: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    print(f"metaq: {text}", file=sys.stderr)
    return status


def _end_of_output() -> int:
    """Make the interpreter's last flush of the standard output harmless."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metaq", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"metaq {metaq.__version__}")
    parser.add_argument("-c", "--cluster", metavar="CLUSTER", help=_CLUSTER_HELP)
    parser.add_argument("--profile", metavar="NAME", help="section of the configuration file (default: $METAQ_PROFILE)")
    parser.add_argument("--timeout", metavar="SECONDS", help="how long to wait for an answer (default: 30)")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    # small: what a command needs is imported when it runs
    from metaq.cli import (
        bench,
        completion,
        consume,
        dead_letters,
        doctor,
        find,
        groups,
        inspect,
        lag,
        mirror,
        produce,
        stats,
        topic_settings,
    )

    produce.add_command(commands)
    consume.add_command(commands)
    find.add_command(commands)
    inspect.add_commands(commands)
    topic_settings.add_commands(commands)
    lag.add_command(commands)
    groups.add_commands(commands)
    dead_letters.add_command(commands)
    mirror.add_command(commands)
    stats.add_command(commands)
    bench.add_command(commands)
    doctor.add_command(commands)
    completion.add_command(commands, parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
