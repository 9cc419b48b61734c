"""``metaq completion``: a script with which a shell completes commands, options and topics.

It is generated from the parser, so it is always complete. A shell requests topics with ``--topics``; if the cluster
does not answer at once, there are none.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from metaq.cli.command import argument, command
from metaq.cli.completion_scripts import CompletedOption, Words, bash, fish, zsh

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile

TOPICS_S: Final = 1.0
"""For how long a shell may wait for topics, in seconds."""

TOPIC_NAMES: Final = frozenset({"topic", "topics"})
FILE_NAMES: Final = frozenset({"files", "file"})
_FILE_METAVARS: Final = frozenset({"FILE", "PATH", "DIR"})
_SHELLS: Final = {"bash": bash, "zsh": zsh, "fish": fish}


@command(
    "completion",
    "print a script that completes commands in a shell",
    argument("shell", choices=sorted(_SHELLS), nargs="?", help="for example: source <(metaq completion bash)"),
    argument("--topics", action="store_true", help="print the topics of the cluster instead, for such scripts"),
    examples=("bash", "zsh", "fish", "--topics"),
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.cli.main import whole_parser

    if options.topics:
        return _print_topics(profile)
    if options.shell is None:
        raise ValueError(f"completion: expected a shell, one of {', '.join(sorted(_SHELLS))}")
    print(_SHELLS[options.shell](list(words_of(whole_parser()))), end="")
    return 0


def _print_topics(profile: CommandProfile) -> int:
    """Print the topics, or nothing after an error, which a shell cannot use."""
    from dataclasses import replace

    from metaq.errors import MetaqError

    try:
        timeout_s = TOPICS_S if profile.timeout is None else min(TOPICS_S, profile.timeout)
        with replace(profile, timeout=timeout_s).connect() as mq:
            names = list(mq.cluster.topics())
    except (MetaqError, ValueError, OSError):
        return 1
    print("".join(f"{name}\n" for name in names), end="")
    return 0


def words_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Words]:
    """Yield what may stand after the command itself, and after each of its commands."""
    options, arguments, commands, repeats = [], [], {}, False
    nested: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested = action.choices
            commands = {choice.dest: choice.help or "" for choice in action._choices_actions}
        elif action.option_strings:
            options.append(_option(action))
        else:
            arguments.append(_kind(action))
            repeats = action.nargs in ("*", "+")
    yield Words(path, commands, tuple(options), tuple(arguments), repeats)
    for name in commands:
        yield from words_of(nested[name], (*path, name))


def _option(action: argparse.Action) -> CompletedOption:
    kind = _kind(action)
    takes_value = action.nargs != 0
    return CompletedOption(
        tuple(action.option_strings),
        (action.help or "").replace("%%", "%"),
        "flag" if not takes_value else kind if isinstance(kind, str) else "value",
        kind if takes_value and isinstance(kind, tuple) else (),
    )


def _kind(action: argparse.Action) -> str | tuple[str, ...]:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.dest in TOPIC_NAMES:
        return "topic"
    is_file = action.dest in FILE_NAMES or action.metavar in _FILE_METAVARS
    return "file" if is_file else "value"
