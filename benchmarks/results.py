"""The file that the suite writes: figures of all programs, with the machine, the commit, the times. Format 1.

{"format": 1, "command": ..., "date": ..., "commit": ..., "seconds": ..., "quick": ..., "peers": [...],
 "whole": true if no program was left out (``--all``),
 "machine": {name: value, ...}, "load before": [...], "load after": [...],
 "programs": [{"name", "title", "arguments": [...], "seconds", "failed": null or why, "figures": [...]}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from figures import Figure

FORMAT: Final = 1


class WrongResults(Exception):
    """A file that the suite has not written. The text says which, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one program gave. ``failed`` says why there are no figures, or is ``None``."""

    name: str
    title: str
    arguments: tuple[str, ...]
    seconds: float
    figures: tuple[Figure, ...]
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """One run of the suite. ``about`` is everything but the programs, under the names of the file."""

    about: dict[str, Any]
    outcomes: tuple[Outcome, ...]

    def figures(self) -> Iterator[tuple[Outcome, Figure]]:
        """All figures, each with its program."""
        return ((outcome, figure) for outcome in self.outcomes for figure in outcome.figures)

    @property
    def failed(self) -> list[Outcome]:
        """The programs that failed."""
        return [outcome for outcome in self.outcomes if outcome.failed is not None]

    def write(self, file: Path) -> None:
        """Write the file, and the folder that it is in."""
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, **self.about, "programs": [asdict(outcome) for outcome in self.outcomes]}
        file.write_text(_lines(content) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what ``write`` has written.

        Raises:
            WrongResults: for a file that cannot be read or holds something else.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise WrongResults(f"{file}: not of format {FORMAT}")
            outcomes = tuple(_outcome(each) for each in content.pop("programs"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise WrongResults(f"{file}: no results of the suite ({wrong})") from None
        return cls(content, outcomes)


def _outcome(content: dict[str, Any]) -> Outcome:
    figures = tuple(Figure(**figure) for figure in content.pop("figures"))
    return Outcome(**{**content, "arguments": tuple(content["arguments"]), "figures": figures})


def _lines(value: object, indent: str = "") -> str:
    """Return JSON in which a value that holds no list of objects, such as a figure, takes one line."""
    if isinstance(value, dict) and any(_is_nested(each) for each in value.values()):
        rows = [f"{indent} {json.dumps(key)}: {_lines(each, indent + ' ')}" for key, each in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        rows = [f"{indent} {_lines(each, indent + ' ')}" for each in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def _is_nested(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value)
