"""Parses the text of one configuration value into a number, a boolean or another checked value.

Every reader gets a text that is not blank and raises ``ValueError`` with a text that says what is allowed; the caller
adds file, section and key.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.sizes import parse_size
from metaq_broker.log.retention.policy import RetentionPolicy, Schedule

Reader = Callable[[str], Any]

EVERYONE = "*"
"""The value of an allow list that allows everyone."""

EXPRESSION_CHARS_MAX = 100
"""Longest arithmetic expression that is evaluated."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate(text: str) -> int:
    """Return the value of a whole-number expression: ``1024*1024*64``; ``+ - * / %`` and brackets; ``/`` rounds down.

    Raises:
        ValueError: Anything but whole numbers and these operators, a division by zero, or more than
            ``EXPRESSION_CHARS_MAX`` characters.
    """
    try:
        if len(text) > EXPRESSION_CHARS_MAX:
            raise ValueError
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError, MemoryError, RecursionError):
        raise ValueError("a whole number or arithmetic on whole numbers such as 1024*1024") from None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError(node)


def one_of(*words: str) -> Reader:
    """Return a reader that accepts these words only."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return read


def number(low: int, high: int) -> Reader:
    """Return a reader of whole numbers ``low..high``, plain or as an expression."""

    def read(text: str) -> int:
        value = evaluate(text)
        if not low <= value <= high:
            raise ValueError(f"a number of {low}..{high}")
        return value

    return read


def byte_count(low: int, high: int) -> Reader:
    """Return a reader of sizes ``low..high``: like ``number``, or a number with a unit (``parse_size``)."""

    def read(text: str) -> int:
        if not low <= (value := bytes_of(text)) <= high:
            raise ValueError(f"a number of bytes, {low}..{high}")
        return value

    return read


def bytes_of(text: str) -> int:
    """Return the number of bytes that ``text`` says.

    Raises:
        ValueError: It is neither an expression nor a number with a unit.
    """
    try:
        return parse_size(text)
    except ValueError:
        pass
    try:
        return evaluate(text)
    except ValueError:
        raise ValueError("a number of bytes such as 65536, 1024*1024, 64m or 10 MB") from None


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false`` in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def plain(text: str) -> str:
    return text


def host(text: str) -> str:
    """Check a host name or address: it has no blank and no slash."""
    if re.search(r"[\s/]", text):
        raise ValueError("a host name or an address without blanks and slashes")
    return text.strip("[]")


def file_path(text: str) -> str:
    """Return the absolute path of a file; ``~`` is the home folder, and relative paths start in the working folder."""
    return str(Path(text).expanduser().absolute())


def names(text: str) -> tuple[str, ...]:
    """Parse a list of names with commas between them; ``*``, which means everyone, is the empty list."""
    if text == EVERYONE:
        return ()
    found = tuple(name.strip() for name in text.split(","))
    if not all(found) or EVERYONE in found:
        raise ValueError(f"names of certificates with commas between them, or {EVERYONE} for everyone")
    return found


def delete_policy(text: str) -> str:
    """Check a retention policy such as ``delete,168`` or ``archive,90m,true`` and return it unchanged."""
    RetentionPolicy.parse(text)
    return text


def schedule(text: str) -> str:
    """Check a Quartz schedule such as ``0 0 6,18 * * ?`` and return it unchanged."""
    try:
        Schedule.parse(text)
    except ValueError as fault:
        raise ValueError(f"a Quartz schedule of six or seven fields such as 0 0 6,18 * * ? ({fault})") from None
    return text


def zookeeper_hosts(text: str) -> str:
    """Return the hosts of a ZooKeeper, and the path after them if there is one, without blanks."""
    hosts = ",".join(host.strip() for host in text.split(","))
    try:
        ZooKeeperAddress.parse(hosts)
    except ValueError:
        raise ValueError("HOST:PORT,HOST:PORT, with /PATH after the last one if all of MetaQ is below it") from None
    return hosts


def zookeeper_path(text: str) -> str:
    """Check the path of a ZooKeeper node."""
    if not re.fullmatch(r"(?:/[^/\s]+)+", text):
        raise ValueError("a path such as /meta")
    return text
