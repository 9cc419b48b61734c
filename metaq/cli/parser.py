"""A parser that suggests what was meant: for commands, options, and values of a fixed choice."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any


class SuggestingParser(argparse.ArgumentParser):
    """``argparse``'s parser with suggestions. A wrong command costs one line, without the usage of all others."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(name) for name in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            advice = suggestion(str(value), names) or f"; {self.prog} --help lists them"
            self.exit(2, f"{self.prog}: there is no command {str(value)!r}{advice}\n")
        raise argparse.ArgumentError(
            action, f"{str(value)!r}: expected one of {', '.join(names)}{suggestion(str(value), names)}"
        )


def suggestion(given: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'topics'?`` for a name that is like one of ``names``, else an empty text."""
    from difflib import get_close_matches

    near = get_close_matches(given, list(names), 2, 0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
