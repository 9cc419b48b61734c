"""What a driver reported about its queries: events of a listener, progress reports, or a driver's log.

An event is a JSON object. ``event`` is its kind; all have ``id`` (of the query), ``runId`` and ``at_ms`` (since 1970):

==============  ======================================================================================================
``started``     a run began: ``name``, and ``driver`` with ``host``, ``machine``, ``pid``, ``app``, ``ui``
``progress``    ``progress``: Spark's StreamingQueryProgress
``idle``        the run triggered and found nothing to do
``status``      ``status``: Spark's StreamingQueryStatus; ``trigger`` and ``checkpoint``, if they are known
``terminated``  the run ended; ``exception`` and ``errorClass`` are null if there was no error
==============  ======================================================================================================

A progress report alone, as ``query.lastProgress`` has it and Spark's log prints it, is read as an event of its time.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Event = Mapping[str, Any]

VERSION: Final = 1
KINDS: Final = ("started", "progress", "idle", "status", "terminated")
KEPT: Final[Mapping[str, int]] = {"started": 20, "progress": 100, "idle": 5, "status": 10, "terminated": 20}
"""How many of the newest events of each kind are kept of a query."""

TEXT_BYTES_MAX: Final = 16 << 20
"""Limit on bytes that are read of a file, from its end, or of an answer."""

EVENTS_MAX: Final = 500
EVENTS_BYTES_MAX: Final = 4 << 20
"""Limit on bytes of JSON that a log keeps of a query: a report names each partition several times."""
QUERIES_MAX: Final = 1000
"""Limit on queries that a log keeps; the one that was silent for longest goes first."""

URL: Final = re.compile(r"https?://", re.IGNORECASE)
_LOGGED: Final = re.compile(r"Streaming query made progress: ")


class EventsUnreadable(ValueError):
    """``place`` has no events; ``reason`` says why."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(place, reason)

    def __str__(self) -> str:
        return f"progress {self.place}: {self.reason}"


def read_events(place: str | Path | Iterable[Mapping[str, Any]], deadline_s: float = 5.0) -> list[Event]:
    """Return the events of a file, of what a URL answers, or of trees in memory; oldest first.

    Raises:
        EventsUnreadable: There is nothing, it cannot be read in time, or it is neither events nor progress.
    """
    if isinstance(place, str | Path):
        text = _answer(str(place), deadline_s) if URL.match(str(place)) else _tail(Path(place))
        found = list(parse_events(text))
        if not found:
            raise EventsUnreadable(str(place), "there is no event and no progress in it" if text else "it is empty")
    else:
        found = [event for tree in place for event in events_of(tree)]
    return sorted(found, key=lambda event: int(event["at_ms"]))


def parse_events(text: str) -> Iterator[Event]:
    """Yield the events in a text: a JSON list, lines of JSON, or a log of a driver that has progress in it.

    A last line that is cut off is left out: somebody writes it just now.
    """
    try:
        yield from events_of(json.loads(text))
        return
    except ValueError:
        pass
    decoder = json.JSONDecoder()
    for match in _LOGGED.finditer(text):
        try:
            yield from events_of(decoder.raw_decode(text, match.end())[0])
        except ValueError:
            continue
    for line in text.splitlines():
        if line.startswith("{") and len(line) > 1:
            try:
                yield from events_of(json.loads(line))
            except ValueError:
                continue


def events_of(tree: Any) -> Iterator[Event]:
    """Yield the events of parsed JSON.

    Raises:
        ValueError: It is neither an event, a progress report, nor a list of them.
    """
    if isinstance(tree, list):
        for each in tree:
            yield from events_of(each)
    elif isinstance(tree, Mapping) and "event" in tree:
        yield _checked(tree)
    elif isinstance(tree, Mapping) and {"id", "runId", "batchId", "timestamp"} <= tree.keys():
        yield {
            "v": VERSION,
            "event": "progress",
            "at_ms": ended_ms(tree),
            "id": tree["id"],
            "runId": tree["runId"],
            "progress": tree,
        }
    else:
        raise ValueError("expected an event of the listener or a progress report of Spark, or a list of them")


def _checked(tree: Mapping[str, Any]) -> Event:
    kind, at_ms = tree["event"], tree.get("at_ms")
    if kind not in KINDS:
        raise ValueError(f"event {str(kind)[:40]!r}: expected one of {', '.join(KINDS)}")
    if isinstance(at_ms, bool) or not isinstance(at_ms, int) or not 0 <= at_ms < 1 << 60:
        raise ValueError(f"at_ms of an event: expected ms since 1970, got {str(at_ms)[:40]!r}")
    if not all(isinstance(tree.get(key), str) for key in ("id", "runId")):
        raise ValueError("an event has no id and runId of its query")
    part = {"progress": "progress", "status": "status"}.get(kind)
    if part is not None and not isinstance(tree.get(part), Mapping):
        raise ValueError(f"an event {kind} has no object {part}")
    return tree


def ended_ms(progress: Mapping[str, Any]) -> int:
    """Return when the trigger of a progress report ended, in ms since 1970."""
    took_ms = (progress.get("durationMs") or {}).get("triggerExecution", 0)
    return began_ms(progress) + int(took_ms)


def began_ms(progress: Mapping[str, Any]) -> int:
    """Return when the trigger of a progress report began, in ms since 1970.

    Raises:
        ValueError: It has no timestamp that can be read.
    """
    return time_ms(progress["timestamp"])


def time_ms(text: object) -> int:
    """Parse Spark's timestamps, such as ``2026-11-27T08:00:00.123Z``. Raises ``ValueError``."""
    if not isinstance(text, str):
        raise ValueError(f"timestamp {str(text)[:40]!r}: expected a text")
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def this_machine() -> str:
    """Return what names the system and the container that process ids here are of; blank where nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def newest(events: Sequence[Event]) -> list[Event]:
    """Return the events that are worth keeping of one query: the newest of each kind, oldest first."""
    kept: list[Event] = []
    counts = dict.fromkeys(KEPT, 0)
    for event in reversed(events):
        if counts[event["event"]] < KEPT[event["event"]]:
            counts[event["event"]] += 1
            kept.append(event)
    return kept[::-1]


class ProgressLog:
    """Events in memory, as a server keeps what listeners post. Bounded for each query, and in queries; thread-safe."""

    def __init__(
        self, queries_max: int = QUERIES_MAX, events_max: int = EVENTS_MAX, bytes_max: int = EVENTS_BYTES_MAX
    ) -> None:
        """``events_max``: limit of events that are kept of a query, in addition to ``KEPT``. ``bytes_max``: limit of
        bytes of JSON, which only the newest event may exceed.
        """
        self._queries_max, self._events_max, self._bytes_max = queries_max, events_max, bytes_max
        self._lock = threading.Lock()
        self._events: dict[str, list[tuple[Event, int]]] = {}

    def add(self, tree: Any) -> int:
        """Keep an event, a progress report, or a list of them; return how many there were.

        Raises:
            ValueError: It is something else; nothing of it is kept.
        """
        found = [(event, len(json.dumps(event))) for event in events_of(tree)]
        with self._lock:
            for one in found:
                mine = self._events.pop(one[0]["id"], [])
                self._events[one[0]["id"]] = self._bounded([*mine, one])
            while len(self._events) > self._queries_max:
                self._events.pop(next(iter(self._events)))
        return len(found)

    def _bounded(self, kept: list[tuple[Event, int]]) -> list[tuple[Event, int]]:
        """Return the newest of the events of a query; of too many bytes, the oldest progress goes first."""
        if len(kept) > self._events_max:
            chosen = {id(event) for event in newest([event for event, _ in kept])}
            kept = [one for one in kept if id(one[0]) in chosen]
        surplus = sum(size for _, size in kept) - self._bytes_max
        while surplus > 0 and len(kept) > 1:
            reports = (place for place, (event, _) in enumerate(kept[:-1]) if event["event"] == "progress")
            surplus -= kept.pop(next(reports, 0))[1]
        return kept

    def events(self, query_id: str) -> list[Event]:
        """Return what is kept of a query, oldest first."""
        with self._lock:
            kept = [event for event, _ in self._events.get(query_id, ())]
        return newest(sorted(kept, key=lambda event: int(event["at_ms"])))

    def queries(self) -> dict[str, dict[str, Any]]:
        """Return each query's ``name``, ``run_id``, ``last_at_ms`` and ``checkpoint``; the last to report last."""
        with self._lock:
            known = {query_id: [event for event, _ in kept] for query_id, kept in self._events.items()}
        return {query_id: _outline(events) for query_id, events in known.items()}

    def __iter__(self) -> Iterator[Event]:
        with self._lock:
            known = [event for kept in self._events.values() for event, _ in kept]
        return iter(known)


def _outline(events: Sequence[Event]) -> dict[str, Any]:
    names = (event.get("name") or (event.get("progress") or {}).get("name") for event in reversed(events))
    folders = (event.get("checkpoint") for event in reversed(events))
    return {
        "name": next(filter(None, names), None),
        "run_id": events[-1]["runId"],
        "last_at_ms": events[-1]["at_ms"],
        "checkpoint": next(filter(None, folders), None),
    }


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - TEXT_BYTES_MAX))
            data = opened.read(TEXT_BYTES_MAX)
    except OSError as error:
        raise EventsUnreadable(str(file), error.strerror or str(error)) from None
    if size > len(data):
        data = data[data.find(b"\n") + 1 :]
    return data.decode("utf-8", "replace")


def _answer(url: str, deadline_s: float) -> str:
    asked = within(lambda: _get(url, deadline_s), deadline_s)
    if asked is None:
        raise EventsUnreadable(url, f"no answer within {deadline_s:g} s")
    if isinstance(asked, Exception):
        reason = getattr(asked, "reason", None) or asked
        raise EventsUnreadable(url, str(reason) or type(asked).__name__)
    return str(asked)


def _get(url: str, deadline_s: float) -> str:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=deadline_s) as response:
        data: bytes = response.read(TEXT_BYTES_MAX + 1)
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"the answer has more than {TEXT_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace")


def within(ask: Callable[[], Any], deadline_s: float) -> Any:
    """Return what ``ask`` returns, or the exception that it raises; ``None`` if that takes longer than ``deadline_s``.

    It runs in a thread that does not keep the process alive: a server that hangs costs this much and no more.
    """
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(ask())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, name="metaq-diagnosis", daemon=True)
    thread.start()
    thread.join(deadline_s)
    return found[0] if found else None
