"""Mistakes that others have made or that are near, each planted into one part of a history.

They show that the simulator would find them. Nothing of the product has a switch for them: a method is replaced while
the histories run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest.mock import patch

from metaq_broker.replication.pair.leading import Leading
from metaq_broker.replication.pair.member import PairMember

from faults.simulation.broker import JOURNAL, Serving
from faults.simulation.disk import Disk
from faults.simulation.history import Outcome, run_history


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is replaced: classes, names of their methods, and what stands there instead. ``effect``: what goes wrong."""

    effect: str
    replaced: tuple[tuple[type, str, Callable[..., Any]], ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, instead in self.replaced:
                stack.enter_context(patch.object(owner, name, instead))
            yield


# ---- the core


def _waits_for_nobody(leading: Leading) -> frozenset[str]:
    return frozenset()


def _waits_for_connected(leading: Leading) -> frozenset[str]:
    members = (leading.known | leading.proposed) - {leading._uuid}
    return frozenset(uuid for uuid in members if uuid in leading._members)


def _proposes_silently(leading: Leading, in_sync: frozenset[str]) -> None:
    return None


def _has_in_32_bits(leading: Leading, copy: Any, name: str, otherwise: int) -> bool:
    stored: int = copy.stored.get(name, otherwise)
    return (stored - leading._logs[name].confirmed) & 0xFFFFFFFF < 0x80000000


def _is_always_fit(member: PairMember, record: object) -> None:
    return None


def _refuses_nothing(member: PairMember, epoch: int) -> bool:
    return False


def _keeps_the_lead(member: PairMember, leading: Leading) -> None:
    return None


def _ends_at_its_damage(member: PairMember, stream: str, end: int, *, durable: bool) -> None:
    if member._leading is not None:
        member._leading.written(stream, end, durable=durable)


# ---- the disk

_ORIGINAL_OPEN, _ORIGINAL_LOSE_POWER = Disk.open, Disk.lose_power


def _open_and_sync(disk: Disk) -> None:
    _ORIGINAL_OPEN(disk)
    disk.synced = disk.file, {name: each.epochs for name, each in disk.streams.items()}  # type: ignore[attr-defined]


def _lose_epochs(disk: Disk, random: Random) -> None:
    _ORIGINAL_LOSE_POWER(disk, random)
    file, epochs = disk.__dict__.get("synced", (disk.file, {}))
    disk.file = replace(disk.file, promised=file.promised, seen=file.seen)
    for name, stream in disk.streams.items():
        stream.epochs = epochs.get(name, ())


def _does_nothing(disk: Disk, cut: object) -> None:
    return None


# ---- what a master serves


def _written_end(serving: Serving, stream: str) -> int:
    return serving._disk.streams[stream].end


def _no_id(serving: Serving) -> int:
    return 0


_ORIGINAL_DECIDE, _ORIGINAL_RECOVER = Serving.decide, Serving.recover


def _decide_and_keep(serving: Serving, batch: int, choice: object, answer: Callable[[object], None]) -> None:
    kept = serving._disk.__dict__.setdefault("kept_decisions", {})
    if serving._disk.streams[JOURNAL] and batch not in serving.decisions:
        kept.setdefault(batch, choice)
    _ORIGINAL_DECIDE(serving, batch, choice, answer)


def _recover_kept(serving: Serving) -> None:
    serving.decisions.update(serving._disk.__dict__.get("kept_decisions", {}))
    _ORIGINAL_RECOVER(serving)


MISTAKES: dict[str, Mistake] = {
    "acknowledge before the slave": Mistake(
        "a put is acknowledged when the master has it", ((Leading, "_waits_for", _waits_for_nobody),)
    ),
    "shrink after acknowledging": Mistake(
        "a member that is lost is no longer waited for, before ZooKeeper has the smaller set",
        ((Leading, "_waits_for", _waits_for_connected),),
    ),
    "no boot counter": Mistake(
        "a disk that was put back to a copy leads", ((PairMember, "_unfitness", _is_always_fit),)
    ),
    "epoch not synced": Mistake(
        "promises and epochs are lost with the power",
        ((Disk, "open", _open_and_sync), (Disk, "lose_power", _lose_epochs)),
    ),
    "truncate without an intention": Mistake(
        "a cut that was interrupted is not finished", ((Disk, "store_intention", _does_nothing),)
    ),
    "serve beyond the confirmed end": Mistake(
        "readers see what the slave does not have", ((Serving, "readable_end", _written_end),)
    ),
    "elect by a 32-bit difference": Mistake(
        "a member that lacks gigabytes counts as caught up", ((Leading, "_has", _has_in_32_bits),)
    ),
    "keep an old decision": Mistake(
        "decisions are kept beside the journal, and not cut with it",
        ((Serving, "decide", _decide_and_keep), (Serving, "recover", _recover_kept)),
    ),
    "ids below the log's last": Mistake(
        "a new master begins its message ids at its clock", ((Serving, "last_stored_id", _no_id),)
    ),
    "forget the proposed set": Mistake(
        "a set that may have been stored is not waited for", ((Leading, "propose", _proposes_silently),)
    ),
    "accept an older epoch": Mistake(
        "a member follows a master that it should refuse", ((PairMember, "_refuses", _refuses_nothing),)
    ),
    "drop the tail silently": Mistake(
        "what was cut is not in lost+found", ((Disk, "keep_tail", _does_nothing),)
    ),
    "keep the lead with damage": Mistake(
        "a master keeps a damaged record that the other member has",
        ((PairMember, "_hand_over_if_unfit", _keeps_the_lead),),
    ),
    "cut the other member at the damage": Mistake(
        "what is after a master's damage counts as not acknowledged", ((PairMember, "_written", _ends_at_its_damage),)
    ),
}  # fmt: skip


def first_failure(mistake: Mistake, seeds: int, first: int = 0) -> Outcome | None:
    """Return the outcome of the first seed that breaks an invariant with the mistake planted; ``None`` if none does."""
    with mistake.planted():
        for seed in range(first, first + seeds):
            outcome = run_history(seed)
            if outcome.violation is not None and outcome.violation.number:  # 0: the simulator itself failed
                return outcome
    return None
