"""Checks before each decision that the brokers of an exactly-once write still know the earlier batches.

A broker whose data folder or journal was restored from an older copy does not notice it. But a stream decides every
micro-batch, even an empty one, so before batch N its brokers know N - 1, or N if it is repeated. And every participant
records every decision, with all participants and the last batch that each of them knew before::

    newest decision that any broker knows    a broker that took part in it knows
    of an earlier batch                      the same one
    of this batch (it is repeated)           the same one, or the one that the decision names for it

Anything else is a gap: written batches that a participant does not know. Other brokers are not checked. Versions of
batch writes may have gaps themselves, so only the table applies to them, and only its brokers are checked for decisions
of older versions. A gap is accepted if the option ``missingBatches`` names it, or if the checkpoint says that the query
was moved back to before it.

A broker that is found by ZooKeeper or a name server may be missing because it is away. If it took part in the newest
decision, it may have decided this batch alone before it left, in an earlier run of the query; the others would decide
it again. So the first batch of a run needs all of them (``missing_brokers``).

Source: docs/transactions.md, "Exactly once".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from metaq.backends.metaq.transactions import LastDecision
from metaq_spark.backends.metaq.exactly_once.contents import Contents
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.participants import Participants
from metaq_spark.checkpoint.gaps import has_batch, leads_back
from metaq_spark.errors import BatchesMissing

_log = logging.getLogger(__name__)

Known = Mapping[int, LastDecision | None]
"""The newest decision of a query that each broker knows, by broker id."""


class Gap(NamedTuple):
    """``brokers`` know batch ``last`` as the newest (``None``: none); the batches up to ``final`` were written too.

    ``alone``: other brokers know later batches.
    """

    brokers: tuple[int, ...]
    last: int | None
    final: int
    alone: bool = False

    @property
    def missing(self) -> tuple[int, int]:
        """The first and the last batch that are unknown."""
        return 0 if self.last is None else self.last + 1, self.final


def find_gap(batch: BatchName, known: Known) -> Gap | None:
    """Return the gap before ``batch``; ``None`` if there is none, or ``batch`` is superseded anyway."""
    newest = newest_batch(known)
    if batch.in_a_stream and (-1 if newest is None else newest) < batch.batch_id - 1:
        return Gap(tuple(sorted(known)), newest, batch.batch_id - 1)
    if newest is None or newest > batch.batch_id:
        return None
    repeated = newest == batch.batch_id
    behind = {
        number: None if one is None else one.batch_id
        for number, one in known.items()
        if one is None or one.batch_id != newest
    }
    if behind:
        before = _took_part(known, newest)
        behind = {
            number: last
            for number, last in behind.items()
            if number in before and not (repeated and last == before[number])
        }
    if not behind:
        return None
    oldest = min(behind.values(), key=lambda last: -1 if last is None else last)
    return Gap(tuple(sorted(behind)), oldest, newest - repeated, alone=True)


def missing_brokers(batch: BatchName, known: Known, run: str) -> list[int]:
    """Return the brokers without which ``batch`` must not be decided: one of them may have decided it already.

    They took part in the newest decision, do not take part now, and that decision was made in another run of the query
    than ``run``: within a run, a batch is decided once, after the one before it.
    """
    newest = newest_batch(known)
    if newest is None or newest >= batch.batch_id:
        return []
    said = _contents(known, newest)
    if said is None or (said.run == run and (run or batch.in_a_stream)):
        return []
    return sorted(set(said.brokers) - set(known))


def newest_batch(known: Known) -> int | None:
    """The newest batch that any broker has decided."""
    return max((one.batch_id for one in known.values() if one is not None), default=None)


def _took_part(known: Known, newest: int) -> Mapping[int, int | None]:
    """Return the participants of the newest decision and what they knew before; empty for an older version's
    decision.
    """
    said = _contents(known, newest)
    return {} if said is None else said.brokers


def _contents(known: Known, newest: int) -> Contents | None:
    """Return what the newest decision says; ``None`` for an older version's."""
    said = next(one.contents for one in known.values() if one is not None and one.batch_id == newest)
    try:
        return Contents.from_json(said)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class GapRule:
    """Which gap is accepted: one named in ``missing_batches``, or before which the query was moved back.

    ``found``: brokers are found, not named one by one, so one may be missing because it is away; ``gone`` are those
    that do not come back.
    """

    missing_batches: tuple[int, int] | None = None
    checkpoint: str | None = None
    found: bool = False
    gone: frozenset[int] = frozenset()

    def missing_brokers(self, batch: BatchName, known: Known, run: str) -> list[int]:
        """Return the brokers that must be waited for before ``batch`` is decided."""
        return [one for one in missing_brokers(batch, known, run) if one not in self.gone] if self.found else []

    def require_known(self, batch: BatchName, known: Known, participants: Participants) -> None:
        """Check that the brokers of a batch know the earlier batches.

        Raises:
            BatchesMissing: They do not.
        """
        gap = find_gap(batch, known)
        if gap is None:
            return
        named = [f"broker {number} ({participants[number]})" for number in gap.brokers]
        readable = self.checkpoint is not None and batch.in_a_stream and has_batch(self.checkpoint, batch.batch_id)
        error = BatchesMissing(
            str(batch),
            " and ".join(named),
            gap.last,
            gap.missing,
            batch.number_name,
            gap.alone,
            self.checkpoint or "" if readable else "",
        )
        if self.missing_batches == gap.missing:
            _log.warning("%s. It is written, because of the option missingBatches", error)
        elif readable and self.checkpoint and leads_back(self.checkpoint, batch.batch_id, gap.missing):
            _log.warning("%s. It is written, because the query was moved back to where the gap begins", error)
        else:
            raise error


NO_GAPS: Final = GapRule()
"""No batch may be unknown."""
