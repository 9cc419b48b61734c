"""Options as rows: a field of an options class is the row of its option.

::

    fetch_bytes: int = option("fetchBytes", size_up_to(1 << 30), "1m", READ, "Bytes asked of a broker at a time.")

An ``OptionTable`` collects the rows of a format's classes. Parsing, the errors about options, the tables of the
documentation and the tests of every option are made from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from metaq_spark.errors import OptionError
from metaq_spark.options.positions import NOTATED, Notation

_log = logging.getLogger(__name__)


class Use(enum.Enum):
    """What an option may be used for. The value is the wording in messages and in the documentation."""

    BATCH_READ = "batch read"
    STREAM_READ = "streaming read"
    BATCH_WRITE = "batch write"
    STREAM_WRITE = "streaming write"


READ: Final = frozenset({Use.BATCH_READ, Use.STREAM_READ})
BATCH_READ: Final = frozenset({Use.BATCH_READ})
STREAM_READ: Final = frozenset({Use.STREAM_READ})
WRITE: Final = frozenset({Use.BATCH_WRITE, Use.STREAM_WRITE})
BATCH_WRITE: Final = frozenset({Use.BATCH_WRITE})
STREAM_WRITE: Final = frozenset({Use.STREAM_WRITE})
ANY: Final = READ | WRITE

UNSET: Final = ""
"""Default of an option without a default value."""

CHECKPOINT_LOCATION: Final = "checkpointlocation"

SET_BY_SPARK: Final = frozenset({CHECKPOINT_LOCATION, "queryname", "serialization.format"})
"""Spark's own options that it also passes to a source or sink."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row.

    ``default`` is the text used if the option is not given, or one text for each use if they differ. ``parse`` raises
    ``ValueError`` with a sentence about what is allowed. ``field`` is the attribute of the parsed object.
    """

    name: str
    parse: Callable[..., Any]
    default: str | Mapping[Use, str]
    uses: frozenset[Use]
    doc: str
    field: str = ""

    def default_for(self, use: Use) -> str:
        """The default text when the option is used for ``use``."""
        return self.default if isinstance(self.default, str) else self.default[use]

    def read(self, raw: Mapping[str, str], use: Use) -> Any:
        """The value in ``raw``, whose keys are in lower case, or the default.

        Raises:
            OptionError: The text cannot be read.
        """
        text = raw.get(self.name.lower())
        if text is None and self.default == UNSET:
            return None
        try:
            return self.parse(self.default_for(use) if text is None else text)
        except ValueError as error:
            raise OptionError(self.name, f"{text!r}: {error}") from None

    def written_in(self, notation: Notation) -> Option:
        """Return the row for a format: ``parse`` uses its notation, and ``doc`` its words."""
        parse = partial(self.parse, notation) if self.parse in NOTATED else self.parse
        return replace(self, parse=parse, doc=notation.fill(self.doc))


def option(
    name: str,
    parse: Callable[..., Any],
    default: str | Mapping[Use, str],
    uses: frozenset[Use],
    doc: str,
    *,
    secret: bool = False,
) -> Any:
    """A field that is the row of an option; the value of a ``secret`` one is never shown."""
    return dataclasses.field(repr=not secret, metadata={"option": Option(name, parse, default, uses, doc)})


def _rows(classes: Iterable[type]) -> Iterator[Option]:
    """The rows of the fields that each class adds; of a field that several classes have, the row of the first."""
    seen = set()
    for each in classes:
        for field in dataclasses.fields(each):
            own = field.name in inspect.get_annotations(each)
            if own and "option" in field.metadata and field.name not in seen:
                seen.add(field.name)
                yield replace(field.metadata["option"], field=field.name)


Habits = Mapping[str, str | tuple[str, str]]
"""Keys of other connectors, in lower case -> what to use instead; a pair for reads and writes if it differs."""

USE_LIMITS: Final = "use maxBytesPerTrigger, or maxOffsetsPerTrigger for messages"
_NO_GROUP: Final = "leave it out: a query belongs to no group, and no two queries disturb each other"

SHARED_HABITS: Final[Habits] = {
    "topics": ("use subscribe: topics, separated by commas", "use topic: one topic, or a column topic for more"),
    "subscribe": ("use subscribe", "use topic: one topic, or a column topic for more"),
    "path": ("a topic has no path; use subscribe: topics, separated by commas", "a topic has no path; use topic"),
    "checkpoint": "use checkpointLocation",
    "group.id": "use group",
    "groupid": "use group",
    "consumergroup": "use group",
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "includeheaders": (
        "use columns, with headers among them: columns = value,headers",
        "leave it out: a write takes a column headers",
    ),
    "mode": ("use mode", 'use .mode("append") or .outputMode("append")'),
}
"""Keys that no format has."""


class OptionTable:
    """The options of one format: the rows of its ``classes``, in the order in which the documentation shows them.

    ``changes``: option name -> differences to the shared row. ``habits``: unknown key -> what to use instead.
    ``former``: key of an option that is gone, in lower case -> why it is ignored, which a warning in the log says.
    ``usual``: the names suggested in the error about an unknown option. ``page``: the documentation page with all
    options.
    """

    def __init__(
        self,
        classes: Iterable[type],
        notation: Notation,
        habits: Habits,
        usual: str,
        page: str,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        former: Mapping[str, str] | None = None,
    ) -> None:
        rows = [replace(row, **(changes or {}).get(row.name, {})) for row in _rows(classes)]
        self.rows: Final = tuple(row.written_in(notation) for row in rows)
        self._habits, self._usual, self._page, self._former = habits, usual.split(), page, former or {}
        self._by_key = {option.name.lower(): option for option in self.rows}

    def read(self, raw: Mapping[str, str], use: Use, uses: frozenset[Use] | None = None) -> dict[str, Any]:
        """Return field -> value of each option for ``use``.

        ``uses``: allowed uses of the options, ``use`` alone unless it is not known yet.

        Raises:
            OptionError: An option is unknown, is not for this use, or cannot be read.
        """
        self._refuse_unknown(raw, uses or frozenset({use}))
        kind = READ if use in READ else WRITE
        given = _with_lower_keys(raw)
        return {option.field: option.read(given, use) for option in self.rows if option.uses & kind}

    def read_reach(self, raw: Mapping[str, str], whom: str) -> dict[str, Any]:
        """Return the values of the connection options for ``whom`` ("brokers"), for uses other than reads and writes.

        Raises:
            OptionError: A key is not a connection option, or a value is not valid.
        """
        allowed = {option.name: option for option in self.rows if option.uses == ANY}
        for key in raw:
            if key.lower() not in map(str.lower, allowed):
                text = f"it says nothing about how to reach the {whom}. Allowed here: {', '.join(allowed)}"
                raise OptionError(key, text)
        given = _with_lower_keys(raw)
        return {option.field: option.read(given, Use.BATCH_READ) for option in allowed.values()}

    def reach_of(self, raw: Mapping[str, str]) -> dict[str, str]:
        """Return the connection options among the options of a streaming read.

        Raises:
            OptionError: An option is unknown, or is not for a streaming read.
        """
        self._refuse_unknown(raw, frozenset({Use.STREAM_READ}))
        allowed = {option.name.lower() for option in self.rows if option.uses == ANY}
        return {key: value for key, value in raw.items() if key.lower() in allowed}

    def _refuse_unknown(self, raw: Mapping[str, str], uses: frozenset[Use]) -> None:
        for key in raw:
            name = key.lower()
            option = self._by_key.get(name)
            if name in self._former:
                _log.warning("option %s: %s", key, self._former[name])
            elif option is None and name not in SET_BY_SPARK:
                raise OptionError(key, self._unknown(key, uses))
            if option is not None and not option.uses & uses:
                raise OptionError(option.name, self._misplaced(option, uses))

    def _unknown(self, key: str, uses: frozenset[Use]) -> str:
        if (instead := self._instead(key.lower(), uses)) is not None:
            return instead
        allowed = {option.name.lower(): option.name for option in self.rows if option.uses & uses}
        near = [allowed[name] for name in difflib.get_close_matches(key.lower(), allowed, n=3)]
        hint = f"there is no such option; did you mean {' or '.join(near)}?" if near else "there is no such option."
        usual = [name for name in self._usual if name.lower() in allowed and name not in near]
        return f"{hint} The usual ones of a {_wording(uses)}: {', '.join([*near, *usual])}; {self._page} has all"

    def _instead(self, key: str, uses: frozenset[Use]) -> str | None:
        found = self._habits.get(key)
        if found is None:
            return None
        reading, writing = (found, found) if isinstance(found, str) else found
        return writing if uses <= WRITE else reading

    def _misplaced(self, option: Option, uses: frozenset[Use]) -> str:
        instead = self._instead(option.name.lower(), uses)
        where = f"it is for a {_wording(option.uses)}, not for a {_wording(uses)}"
        return where if instead is None else f"{where}; {instead}"


def _with_lower_keys(raw: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in raw.items()}


def _wording(uses: Iterable[Use]) -> str:
    return " or a ".join(use.value for use in Use if use in uses)
