"""Asks the brokers again and again, each time within a deadline, and keeps what they said."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from metaq.errors import MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.backend import FORMATS, backend_named
from metaq_spark.diagnosis.evidence import BrokerEvidence, BrokerLook, ServerFault, SourceFolder
from metaq_spark.diagnosis.probe import Probe
from metaq_spark.diagnosis.progress import within
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.offsets import Progress

_PATIENCE: Final = {"connectTimeoutMs": "2000", "requestTimeoutMs": "3000", "retries": "0"}
"""Default timeouts of what is asked; nothing is asked twice."""
ZOOKEEPER: Final = "zookeeper"
"""The option that names MetaQ's brokers instead."""
LOOKS_MAX: Final = 120
PARTITIONS_TIMED_MAX: Final = 200
"""Partitions whose last message is looked up, at most: one request each."""


def probes_of(options: Mapping[str, str]) -> dict[str, Probe]:
    """Return a probe for each format whose brokers the options of a read name.

    Raises:
        OptionError: An option is wrong.
    """
    lowered = {name.lower(): (name, value) for name, value in options.items()}
    patience = {name: value for name, value in _PATIENCE.items() if name.lower() not in lowered}
    keys = {name: {one.brokers_option.lower()} for name, one in FORMATS.items()}
    keys["metaq"].add(ZOOKEEPER)
    found = {}
    for name, own in keys.items():
        if own & lowered.keys():
            foreign = set().union(*(others for other, others in keys.items() if other != name))
            raw = dict(pair for key, pair in lowered.items() if key not in foreign)
            found[name] = backend_named(name).probe({**patience, **raw})
    return found


class BrokerWatch:
    """The brokers of a query, seen at several times. ``deadline_s``: most seconds of one look."""

    def __init__(self, options: Mapping[str, str], deadline_s: float) -> None:
        """Raises as ``probes_of``."""
        self._probes = probes_of(options)
        self._deadline_s = deadline_s
        self._looks: deque[BrokerLook] = deque(maxlen=LOOKS_MAX)

    @property
    def formats(self) -> frozenset[str]:
        """The formats whose brokers can be asked."""
        return frozenset(self._probes)

    def look(self, sources: Sequence[SourceFolder]) -> str | None:
        """Ask for the lag of each source now; return why there is none, if so."""
        found = within(lambda: self._look(sources), self._deadline_s)
        if isinstance(found, BrokerLook):
            self._looks.append(found)
            return None
        return f"no answer within {self._deadline_s:g} s" if found is None else str(found)

    def evidence(
        self,
        sources: Sequence[SourceFolder],
        *,
        times_ms: Sequence[int] = (),
        types: bool = False,
        error: str | None = None,
    ) -> BrokerEvidence:
        """Return the looks so far, and what is asked in addition: ends at ``times_ms``, and the ``types`` of messages.

        Servers are checked while the other answers are waited for.
        """
        faults: list[ServerFault] = []
        checkups = [threading.Thread(target=_check, args=(one, faults), daemon=True) for one in self._probes.values()]
        end_s = time.monotonic() + self._deadline_s
        for checkup in checkups:
            checkup.start()
        away = bool(error) or (bool(self._looks) and bool(self._looks[-1].away))
        more = {} if away else self._more(sources, times_ms, types)
        for checkup in checkups:
            checkup.join(max(0.0, end_s - time.monotonic()))
        if error is not None:
            return BrokerEvidence(looks=tuple(self._looks), faults=tuple(faults), error=error)
        return BrokerEvidence(looks=tuple(self._looks), faults=tuple(faults), **more)

    def _look(self, sources: Sequence[SourceFolder]) -> BrokerLook:
        began_s, lags, away = time.monotonic(), dict[int, tuple[PartitionLag, ...]](), dict[str, str]()
        for source in sources:
            if source.format in self._probes and source.known.offsets:
                found, silent = self._probes[source.format].lags_now(source.known)
                lags[source.number] = tuple(found)
                away |= {server: _reason(error) for server, error in silent.items()}
        return BrokerLook(int(time.time() * 1000), lags, away, time.monotonic() - began_s)

    def _more(self, sources: Sequence[SourceFolder], times_ms: Sequence[int], types: bool) -> dict[str, Any]:
        """Return further answers; what a broker cannot say is left out."""
        by_format = self._partitions(sources)
        more: dict[str, Any] = {"ends_at": tuple(self._ends_at(by_format, times_ms))}
        last_put_ms: dict[TopicPartition, int] = {}
        seen: dict[str, int] = {}
        for name, ranges in by_format.items():
            some = dict(list(ranges.items())[:PARTITIONS_TIMED_MAX])
            last_put_ms |= _known(within(lambda n=name, s=some: self._probes[n].last_put_ms(s), self._deadline_s))  # type: ignore[misc]
            if types and some:
                where, stored = max(some.items(), key=lambda one: len(one[1]))
                seen |= _known(within(lambda n=name, w=where, s=stored: self._probes[n].types(w, s), self._deadline_s))  # type: ignore[misc]
        return more | {"last_put_ms": last_put_ms, "types": seen}

    def _ends_at(
        self, by_format: Mapping[str, Mapping[TopicPartition, OffsetRange]], times_ms: Sequence[int]
    ) -> Iterable[tuple[int, Mapping[TopicPartition, int]]]:
        for ms in times_ms:
            ends: dict[TopicPartition, int] = {}
            for name, ranges in by_format.items():
                asked = within(lambda n=name, r=ranges, t=ms: self._probes[n].offsets_at(list(r), t), self._deadline_s)  # type: ignore[misc]
                ends |= _known(asked)
            if ends:
                yield ms, ends

    def _partitions(self, sources: Sequence[SourceFolder]) -> dict[str, dict[TopicPartition, OffsetRange]]:
        """Return the partitions of the last look that have messages, by format."""
        found: dict[str, dict[TopicPartition, OffsetRange]] = {}
        last = self._looks[-1].lags if self._looks else {}
        for source in sources:
            for lag in last.get(source.number, ()):
                if source.format is not None and lag.available is not None and len(lag.available):
                    found.setdefault(source.format, {})[lag.where] = lag.available
        return found


def _known(answer: Any) -> dict[Any, Any]:
    return answer if isinstance(answer, dict) else {}


def _check(probe: Probe, faults: list[ServerFault]) -> None:
    try:
        for fault in probe.faults():
            faults.append(fault)
    except (MetaqError, OSError, ValueError) as error:
        faults.append(ServerFault("servers", str(error), fails=True))


def _reason(error: MetaqError) -> str:
    return str(error)


def positions(sources: Iterable[SourceFolder]) -> dict[int, Progress]:
    """Return where each source is, by its number."""
    return {source.number: source.known for source in sources}
