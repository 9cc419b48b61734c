"""Commands of ``metaq`` as rows: each gives the parser with its ``--help``, the tables of docs/cli.md, and the examples
with which every command is tested.

::

    @command("describe", "show the partitions of a topic", TOPIC, JSON, examples=("t",))
    def describe(options: argparse.Namespace, profile: CommandProfile) -> int: ...
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from metaq.cli.arguments import topic_name

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile

    Run: TypeAlias = Callable[[argparse.Namespace, CommandProfile], int]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument or option: its names, and what ``argparse`` takes. ``doc``: what the page says, else the help."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    doc: str

    def add(self, parser: argparse._ActionsContainer) -> None:
        """Add it to the parser of a command, or to a group of one."""
        parser.add_argument(*self.names, **self.settings)

    @property
    def usage(self) -> str:
        """The names, the last one with the word for its value, as Markdown."""
        *others, last = self.names
        return ", ".join(f"`{name}`" for name in (*others, f"{last} {self.settings.get('metavar', '')}".rstrip()))


@dataclass(frozen=True, slots=True)
class AtMostOne:
    """Options of which at most one may be given, or, with ``required``, exactly one."""

    arguments: tuple[Argument, ...]
    required: bool

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add them to the parser of a command."""
        group = parser.add_mutually_exclusive_group(required=self.required)
        for each in self.arguments:
            each.add(group)


def argument(*names: str, doc: str = "", **settings: Any) -> Argument:
    """Return an argument; ``settings`` as in ``argparse``."""
    return Argument(names, settings, doc or settings.get("help", "").replace("%%", "%"))


def one_of(*arguments: Argument, required: bool = False) -> AtMostOne:
    """Return options that exclude each other."""
    return AtMostOne(arguments, required)


Ability: TypeAlias = tuple[str, str, str, str]
"""What is done, and whether the bundled broker, a Java MetaQ broker and RocketMQ can do it."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row. ``examples`` are arguments with which it is tested; ``list_name``: its argument that takes a list."""

    name: str
    help: str
    arguments: tuple[Argument | AtMostOne, ...]
    examples: tuple[str, ...]
    abilities: tuple[Ability, ...]
    list_name: str | None
    run: Run

    def options(self) -> Iterator[Argument]:
        """Yield the options, without arguments that have no name on the command line."""
        for each in self.arguments:
            for one in each.arguments if isinstance(each, AtMostOne) else (each,):
                if one.names[0].startswith("-"):
                    yield one


COMMANDS: Final[dict[str, Command]] = {}
"""Each command by its name, of the modules that were imported; ``metaq.cli.commands`` has all, in their order."""


def command(
    name: str,
    text: str,
    *arguments: Argument | AtMostOne,
    examples: tuple[str, ...],
    abilities: tuple[Ability, ...] = (),
    list_name: str | None = None,
) -> Callable[[Run], Run]:
    """Make a row of a function, which returns the exit status. Without ``abilities``, every server can do it."""

    def add(run: Run) -> Run:
        can = abilities or ((f"`{name}`", "yes", "yes", "yes"),)
        COMMANDS[name] = Command(name, text, arguments, examples, can, list_name, run)
        return run

    return add


TOPIC: Final = argument("topic", type=topic_name)
JSON: Final = argument("--json", action="store_true", help="one JSON object a line")
PARTITIONS: Final = argument(
    "-p", "--partition", action="append", metavar="PARTITION", help="only this one; repeatable",
    doc="only this partition; may be repeated",
)  # fmt: skip
FOLLOW: Final = argument("-f", "--follow", action="store_true", help="go on with what is sent later")
