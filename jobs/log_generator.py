"""Writes log lines in the style of a storage cluster and of SSH servers: the default input of the demo.

The same seed gives the same bytes. Some lines are difficult, so that a pipeline that alters bytes is noticed: some end
in CR LF, some are blank, some have bytes that are no UTF-8, and the last one has no line end.

    python jobs/log_generator.py --lines 300000 --seed 7 lines.log
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

FIRST_MOMENT = datetime(2008, 11, 9, 20, 35)
SECONDS_BETWEEN_LINES_MAX = 0.5
CRLF_EVERY, BLANK_EVERY, BROKEN_UTF8_EVERY = 7, 997, 1499

EVENTS = (
    (260, "{thread} INFO dfs.DataNode$PacketResponder: PacketResponder {replica} for block {block} terminating"),
    (200, "{thread} INFO dfs.DataNode$DataXceiver: Received block {block} of size {size} from {node}"),
    (18, "{thread} WARN dfs.DataNode$DataXceiver: {node} got exception while serving {block} to {node}"),
    (250, "{thread} INFO dfs.FSNamesystem: BLOCK* addStoredBlock: blockMap updated: {node} is added to {block}"),
    (6, "{thread} WARN dfs.FSNamesystem: BLOCK* addStoredBlock: redundant request received for {block} on {node}"),
    (90, "{thread} INFO dfs.FSDataset: Deleting block {block}"),
    (4, "{thread} ERROR dfs.FSDataset: cannot delete {block}: the file is not on this disk"),
    (110, "sshd[{thread}]: Accepted publickey for deploy from {outsider}"),
    (50, "sshd[{thread}]: Failed password for invalid user admin from {outsider}"),
    (12, "sshd[{thread}]: error: Received disconnect from {outsider}: 3: no more methods [preauth]"),
)
"""Frequency in a thousand lines, and the text after the time; ``sshd`` lines have the time in syslog's form."""

DETAILS: dict[str, Callable[[random.Random], object]] = {
    "thread": lambda chance: chance.randint(13, 4999),
    "replica": lambda chance: chance.randint(0, 2),
    "block": lambda chance: f"blk_{chance.getrandbits(63) - (1 << 62)}",
    "size": lambda chance: chance.randint(1 << 20, 1 << 26),
    "node": lambda chance: f"10.251.{chance.randint(0, 255)}.{chance.randint(1, 254)}:50010",
    "outsider": lambda chance: f"203.0.113.{chance.randint(1, 254)} port {chance.randint(1024, 65535)} ssh2",
}
"""Choices for each word in braces, drawn again for every line."""


class _Drawn(dict[str, object]):
    """Draws a value when a template needs it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __missing__(self, name: str) -> object:
        return DETAILS[name](self._chance)


def log_lines(count: int, seed: int) -> Iterator[bytes]:
    """Yield ``count`` lines in the order of their times, each but the last with its line end."""
    chance = random.Random(seed)
    drawn = _Drawn(chance)
    weights, templates = zip(*EVENTS, strict=True)
    moment = FIRST_MOMENT
    for number in range(1, count + 1):
        moment += timedelta(seconds=chance.random() * SECONDS_BETWEEN_LINES_MAX)
        [template] = chance.choices(templates, weights)
        yield _text(number, template.format_map(drawn), moment) + _line_end(number, count)


def _text(number: int, event: str, moment: datetime) -> bytes:
    if number % BLANK_EVERY == 0:
        return b""
    stamp = "%b %d %H:%M:%S LabHost" if event.startswith("sshd[") else "%y%m%d %H%M%S"
    text = f"{moment.strftime(stamp)} {event}".encode()
    return text + b" \xff\xc3(" if number % BROKEN_UTF8_EVERY == 0 else text


def _line_end(number: int, count: int) -> bytes:
    if number == count:
        return b""
    return b"\r\n" if number % CRLF_EVERY == 0 else b"\n"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write log lines to a file.")
    parser.add_argument("output", type=Path, help="the file to write; an existing one is replaced")
    parser.add_argument("--lines", type=int, default=300_000, help="how many (default: 300000)")
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same bytes (default: 7)")
    parsed = parser.parse_args(arguments)
    if parsed.lines < 0:
        parser.error(f"--lines {parsed.lines}: expected 0 or more")
    if not parsed.output.parent.is_dir():
        parser.error(f"{parsed.output}: its folder does not exist")
    return parsed


def main() -> None:
    arguments = parse_arguments()
    with arguments.output.open("wb") as output:
        output.writelines(log_lines(arguments.lines, arguments.seed))


if __name__ == "__main__":
    main()
