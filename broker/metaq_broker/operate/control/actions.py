"""The actions of ``ctl`` as rows: each gives a subcommand with its arguments, the request, the broker's arguments, the
lines of the result, and the tables of docs/administration.md.

::

    @action("reopen", "recover a partition that takes no messages", TOPIC, INDEX, lines=reopened, doc="...")
    async def reopen(parts: BrokerParts, topic: str, index: int) -> Result: ...
"""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq_broker.operate.control.answers import Lines
from metaq_broker.operate.control.messages import Arguments, Result
from metaq_broker.operate.control.services import BrokerParts


@dataclass(frozen=True, slots=True)
class ControlArgument:
    """One argument, or several that belong together.

    ``usage`` is on the command line, ``request`` in the request; both are for the documentation. ``add`` adds it to the
    parser, ``send`` puts it into the request. ``take`` reads the broker's value from the request; ``None``: there is
    none.
    """

    usage: str
    request: str
    add: Callable[[ArgumentParser], object]
    send: Callable[[Namespace], Mapping[str, Any]]
    take: Callable[[Arguments], Any] | None


@dataclass(frozen=True, slots=True)
class Action:
    """One row. ``reads``: the action changes nothing. ``run`` gets the values of ``arguments``."""

    name: str
    help: str
    arguments: tuple[ControlArgument, ...]
    lines: Lines
    doc: str
    reads: bool
    run: Callable[..., Awaitable[Result]]

    async def carry_out(self, parts: BrokerParts, arguments: Arguments) -> Result:
        """Run the action. Raises ``CommandRefused``."""
        values = [each.take(arguments) for each in self.arguments if each.take is not None]
        arguments.end()
        return await self.run(parts, *values)


ACTIONS: Final[dict[str, Action]] = {}
"""All actions by name, in the order of their definition in ``commands``."""


def action(
    name: str, text: str, *arguments: ControlArgument, lines: Lines, doc: str = "", reads: bool = False
) -> Callable[[Callable[..., Awaitable[Result]]], Callable[..., Awaitable[Result]]]:
    """Make a row of a function; without ``doc``, the documentation shows the help text."""

    def add(run: Callable[..., Awaitable[Result]]) -> Callable[..., Awaitable[Result]]:
        ACTIONS[name] = Action(name, text, arguments, lines, doc or text, reads, run)
        return run

    return add


def _index(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"partition {text!r}: expected an index, 0..2147483647")
    return int(text)


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return _index(first), _index(last) if dash else _index(first)


def _add_offset(parser: ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--offset", type=int, metavar="K", help="add K to each index")
    target.add_argument("--to", type=_index, metavar="INDEX", help="the first one gets this index")


def _one(
    usage: str, name: str, take: Callable[[Arguments, str], Any], shown: str = "", *, key: str = "", **how: Any
) -> ControlArgument:
    """Return an argument that is ``name`` on the command line and ``key``, or ``name``, in the request."""
    key = key or name.lstrip("-")

    def send(options: Namespace) -> Mapping[str, Any]:
        value = getattr(options, name.lstrip("-"))
        return {} if value is None else {key: value}

    return ControlArgument(
        usage,
        f"`{key}`{shown}",
        lambda parser: parser.add_argument(name, **how),
        send,
        lambda arguments: take(arguments, key),
    )


def force(text: str) -> ControlArgument:
    """Return the flag ``--force``; ``text`` is its help."""
    return _one("[--force]", "--force", Arguments.flag, " (true, false)", action="store_true", help=text)


STEPS: Final = ("commit", "rollback", "complete", "accept", "forget")
TOPIC: Final = _one("TOPIC", "topic", Arguments.text)
ANY_TOPIC: Final = _one("[TOPIC]", "topic", Arguments.optional_text, ", optional", nargs="?")
INDEX: Final = _one("INDEX", "index", lambda arguments, key: arguments.number(key, 0), type=_index)
STEP: Final = _one("|".join(STEPS), "step", Arguments.text, f": one of {', '.join(STEPS)}", key="action", choices=STEPS)
KEY: Final = _one("KEY", "key", Arguments.text, help="as `transactions` lists it")
PARTITIONS: Final = ControlArgument(
    "INDEX[-INDEX]",
    "`first`, `last` (default: `first`)",
    lambda parser: parser.add_argument("partitions", type=_range, metavar="INDEX[-INDEX]"),
    lambda options: dict(zip(("first", "last"), options.partitions, strict=True)),
    Arguments.indexes,
)
OFFSET: Final = ControlArgument(
    "(--offset K | --to INDEX)",
    "`offset`",
    _add_offset,
    lambda options: {"offset": options.offset if options.to is None else options.to - options.partitions[0]},
    lambda arguments: arguments.number("offset"),
)
WAIT: Final = ControlArgument(
    "[--wait]",
    "",
    lambda parser: parser.add_argument("--wait", action="store_true", help="return when it has stopped"),
    lambda options: {},
    None,
)


def word(verb: str) -> ControlArgument:
    """Return a fixed word of the command line."""
    return ControlArgument(
        verb, "", lambda parser: parser.add_argument("verb", choices=[verb]), lambda options: {}, None
    )
