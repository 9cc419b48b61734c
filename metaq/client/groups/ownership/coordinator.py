"""The thread that keeps a consumer in its group: it joins, assigns partitions, saves positions and leaves.

All decisions are made here, so a partition is never read before the membership has assigned it to this consumer, and
never released before its delivered messages are settled::

    lose    stop delivery ─▶ wait for unsettled messages (drain_s) ─▶ save ─▶ refuse late acks ─▶ release
    gain    claim, or wait until the owner releases ─▶ load offset ─▶ read

While the group's registry is away, nothing is delivered and positions are kept. After its session has expired, a
consumer no longer knows which partitions it owns. It *suspends* the partitions that it cannot claim again at once,
because their brokers are not registered or another consumer (or its own old session) has them: they are not read,
delivered messages may be settled, and their positions are saved unless another consumer has saved one since. A
partition that this consumer has read continues from its position, unless another consumer has saved a later one.
``Starts`` is asked only for partitions that neither the storage nor this consumer has a position of; its answer is
saved at once.

If the next owner may read before the release (``exclusive`` is false), positions are also saved before the wait, and
after it only where no other consumer is further ahead; see ``saving``.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self

from metaq.client.groups.owned import Owned
from metaq.client.groups.ownership.assignment import Order, Strategy, wanted_partitions
from metaq.client.groups.ownership.bounded import BoundedStorage
from metaq.client.groups.ownership.incarnations import Incarnations, StoredOffsets
from metaq.client.groups.ownership.membership import Membership
from metaq.client.groups.ownership.saving import PositionSaver
from metaq.client.groups.ownership.schedule import StepSchedule
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import OffsetStorage
from metaq.discovery.zk_groups import GroupView
from metaq.discovery.zk_layout import GroupOffset, is_further
from metaq.errors import ConsumerIdInUse, MetaqError, ZooKeeperAway
from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock, wall_clock_ms

STORAGE_S: Final = 5.0
"""Longest wait at the end for a storage that hangs."""

_LOG: Final = logging.getLogger(__name__)

MakeOwned = Callable[[TopicPartition, GroupOffset, int, GroupOffset | None], Owned[Any, Any, Any]]
"""(partition, start, generation, stored offset) -> the partition as this consumer reads it."""


class Starts(Protocol):
    """Finds where a group begins in a partition without a stored offset.

    ``since_ms``: the partition came after the consumer had begun, so that it reads all messages from then on; 0 = all.
    """

    def resolve(self, where: TopicPartition, since_ms: int | None = None) -> GroupOffset: ...


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """``save_s``: period of saving. ``drain_s``: longest wait for delivered messages to be settled. ``id_wait_s``:
    longest wait for a free id.
    """

    strategy: Strategy
    save_s: float = 5.0
    drain_s: float = 20.0
    id_wait_s: float = 60.0
    callbacks: bool = False
    """Whether the program has a callback for revoked partitions, which runs before they are released."""
    order: Order = str
    """Sort order of the partitions before they are assigned."""


class MemberCoordinator:
    """Keeps a consumer in its group. Call ``start``, and ``close`` at the end; all work happens in its thread."""

    def __init__(
        self,
        state: ConsumerState[Any, Any, Any],
        membership: Membership,
        storage: OffsetStorage,
        starts: Starts,
        make: MakeOwned,
        settings: CoordinatorSettings,
        clock: Clock = SYSTEM_CLOCK,
        incarnations: Incarnations | StoredOffsets | None = None,
    ) -> None:
        self._incarnations = incarnations
        self._state, self._membership, self._storage = state, membership, storage
        self._starts, self._make, self._settings, self._clock = starts, make, settings, clock
        self._saver = PositionSaver(state, membership, storage)
        if isinstance(storage, BoundedStorage):
            storage.on_slow = partial(self._explain, "wait for the storage")
        state.until_s = membership.until_s
        state.on_damage = None if incarnations is None else self._note_change
        self._saving = threading.Lock()  # held while positions are saved and partitions are released
        self._wake = threading.Event()
        self._stopping = False
        self._schedule = StepSchedule(settings.save_s, clock)
        self._first: _FirstView | None = None
        self._claimed: set[TopicPartition] = set()
        """Partitions that the membership has assigned to this consumer in this session."""
        self._offsets_away: frozenset[int | str] = frozenset()
        """Brokers of the last division that were away, with the offsets of their partitions."""
        self._waits_since_s: float | None = None
        """When this consumer began to wait for its id, which another consumer has."""
        self._reader: Callable[[], object] = lambda: None
        self._said: dict[str, str] = {}  # kind of step that failed -> reason
        self._thread = threading.Thread(target=self._run, name=f"metaq-group-{membership.group}", daemon=True)

    def start(self, reader: Callable[[], object]) -> None:
        """Start the thread. It leaves the group when the object of the weak reference ``reader`` is gone."""
        self._reader = reader
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Save positions and leave the group; return whether that succeeded within ``timeout_s``."""
        self._stopping = True
        self._wake.set()
        if isinstance(self._storage, BoundedStorage):
            self._storage.hurry(STORAGE_S)
        with self._state.lock:
            self._state.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            text = "group %s: leaving takes longer than %.0f s; if it fails, messages of %s will be repeated"
            _LOG.error(text, self._membership.group, timeout_s, self._named_unsaved())
        return not self._thread.is_alive()

    def save(self, places: Collection[TopicPartition] | None = None) -> None:
        """Save the changed positions now, of ``places`` only if given. Thread-safe.

        Those of suspended partitions are kept as long as a broker is away that has the offsets.

        Raises:
            MetaqError: The storage could not be used. Positions are kept.
        """
        failure: MetaqError | None = None
        with self._saving:
            try:
                self._save(places)
            except MetaqError as error:  # their broker may be the only one that is away
                if not error.retryable:
                    raise
                failure = error
            if places is None:
                self._saver.save_unclaimed(self._unclaimed(), self._offsets_away)
        if failure is not None:
            raise failure

    def check_incarnations(self, broker: int | str) -> set[TopicPartition]:
        """Return the partitions of a broker whose incarnation has changed since they were assigned; they are started
        again.

        Their delivered messages cannot be settled any more. Thread-safe.

        Raises:
            MetaqError: The brokers could not be asked.
        """
        with self._state.lock:
            places = [where for where in self._state.partitions if where.partition.broker == broker]
        changed = self._lose_changed(places)
        if changed:
            self._note_change()
        return changed

    def _lose_changed(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Deliver and settle no more messages of the ``places`` whose incarnation has changed; return these."""
        partitions = self._state.partitions
        if self._incarnations is None:
            return set()
        with self._state.lock:
            read = [where for where in places if where in partitions and not partitions[where].lost]
            doubted = {where for where in read if partitions[where].doubted}
        changed = self._incarnations.changed(read)
        with self._state.lock:
            for where in changed & partitions.keys():
                partitions[where].lost = True
        self._state.confirm(doubted - changed)
        return changed

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Forget the kept positions of partitions that are not read now: their offsets were set from outside."""
        with self._saving:
            self._saver.forget(places)

    def _save(self, places: Collection[TopicPartition] | None = None) -> None:
        if not self._saver.save(places):
            self._note_change()  # check the ownership again

    def _run(self) -> None:
        try:
            self._membership.start(self._note_change, self._note_lost)
            while not (self._stopping or self._is_forgotten()):
                self._wake.clear()
                self._wake.wait(self.step())
        except Exception as error:  # raised by the reader
            self._state.fail(error)
        finally:
            self._leave()

    def _is_forgotten(self) -> bool:
        """Whether the program has dropped the consumer without closing it."""
        if self._reader() is not None:
            return False
        text = f"a consumer of group {self._membership.group!r} was never closed; use it in a with block"
        self._state.close()
        warnings.warn(text, ResourceWarning, stacklevel=2)
        return True

    def _note_change(self) -> None:
        self._schedule.note_change()
        self._wake.set()

    def _note_lost(self) -> None:
        self._state.pause(f"the connection to {self._membership.registry} is lost")

    def step(self) -> float:
        """Do what is due; return the seconds until the next step, unless a change is reported.

        Raises:
            MetaqError: The consumer cannot continue.
        """
        self._said.pop("wait for the storage", None)
        if not self._membership.connected:
            self._state.pause(f"{self._membership.registry} is away")
            self._schedule.is_away()
        elif self._is_member():
            self._schedule.is_member()
            if self._schedule.begin_division():
                self._try("divide", self._divide)
            if self._schedule.begin_saving():
                self._save_suspended()
                self._try("save", self.save)
        else:
            self._schedule.joins()
        return self._schedule.pause_s()

    def _try(self, kind: str, work: Callable[[], object]) -> bool:
        """Run a step; return whether it succeeded, else log and record the reason."""
        try:
            work()
        except MetaqError as error:
            if not error.retryable:
                raise
            self._explain(kind, str(error))
            return False
        self._said.pop(kind, None)
        return True

    def _explain(self, kind: str, text: str) -> None:
        """Report an error: log it once while it stays the same; show it in ``paused`` if nothing is delivered."""
        if text not in self._said.values():
            _LOG.warning("group %s: %s; positions are kept, trying again", self._membership.group, text)
        self._said[kind] = text
        self._state.explain(text)

    def _is_member(self) -> bool:
        """Join the group if necessary; return whether this consumer is a member."""
        if self._membership.registered:
            return True
        self._claimed.clear()
        self._state.pause("the consumer is joining its group")
        if not self._try("join", self._register):
            return False
        self._schedule.note_change()
        return True

    def _register(self) -> None:
        """Join the group. The node of a crashed predecessor may stay until its session expires: wait for a limited
        time.
        """
        now_s = self._clock.monotonic()
        try:
            self._membership.register()
        except ConsumerIdInUse as error:
            self._waits_since_s = self._waits_since_s or now_s
            if now_s - self._waits_since_s >= self._settings.id_wait_s:
                raise
            raise _Waits(str(error)) from None
        self._waits_since_s = None

    def _divide(self) -> None:
        """Assign the partitions, and deliver the messages of this consumer's."""
        failure = self._rebalance()
        if self._membership.connected and self._membership.registered:
            self._state.resume()
        if failure is not None:
            raise failure

    def _rebalance(self) -> MetaqError | None:
        """Compute this consumer's partitions and read them; return why some cannot be started, the others are read."""
        now_ms, view = wall_clock_ms(), self._membership.view()
        self._offsets_away = view.offsets_away
        self._first = self._first or _FirstView.of(view, now_ms)
        if self._membership.consumer_id not in view.members:
            return None  # the session has just ended
        wanted = wanted_partitions(
            *(self._settings.strategy, self._membership.consumer_id, view.members, view.partitions),
            order=self._settings.order,
        )
        owned = set(self._state.partitions)
        now_s = self._clock.monotonic()
        if any(now_s >= self._membership.until_s(where) for where in owned & self._claimed):
            self._state.pause("another consumer may have had the partitions meanwhile")
        self._state.keep(wanted & owned & self._claimed)
        self._release({where for where in self._claimed - wanted if where.partition.broker not in view.away})
        others = {where for where in owned - self._claimed - wanted if _is_there(where, view)}
        self._save_suspended()
        self._drop(others)
        claimed = self._membership.claim(wanted)
        self._state.suspend(set(self._state.partitions) - claimed)
        self._claimed = claimed
        self._lose_changed(self._in_question(claimed))
        failed = self._take_over(claimed)
        if not failed and claimed == wanted:
            self._schedule.divided(self._membership.refresh_s)
        elif missing := wanted - claimed:
            _LOG.info(
                "group %s: %d partitions are still owned by another consumer", self._membership.group, len(missing)
            )
        return failed

    def _in_question(self, claimed: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return the partitions whose incarnation is compared with a division."""
        if self._incarnations is None or self._incarnations.with_divisions:
            return claimed
        partitions = self._state.partitions
        return [where for where in claimed if where in partitions and partitions[where].doubted]

    def _save_suspended(self) -> None:
        """Save the positions of suspended partitions, where no other consumer has saved one since, if possible."""

        def work() -> None:
            with self._saving:
                self._saver.save_unclaimed(self._unclaimed(), self._offsets_away, and_kept=True)

        self._try("save the others", work)

    def _unclaimed(self) -> set[TopicPartition]:
        return set(self._state.partitions) - self._claimed

    def _release(self, lose: set[TopicPartition]) -> None:
        """Give up partitions: drain, save, fence, and only then release."""
        if not lose:
            return
        self._drain(lose & set(self._state.partitions))
        with self._saving:
            try:
                self._save(lose)
            except ZooKeeperAway:
                raise  # no other consumer can get the partitions before the registry is back
            except MetaqError as error:
                _LOG.error("offsets of %s are not saved, messages may be repeated: %s", _named(lose), error)
            self._drop(lose, saving=True)
        self._membership.release(lose)
        self._claimed -= lose

    def _drain(self, lose: set[TopicPartition]) -> None:
        if not lose:
            return
        state, deadline_s = self._state, self._clock.monotonic() + self._settings.drain_s
        state.revoke(lose)
        if not self._membership.exclusive:
            with suppress(MetaqError), self._saving:  # retried after the wait
                self._save(lose)  # the next owner may load the offset already
        with state.lock:
            while not self._stopping and not state.drained(lose, callbacks=self._settings.callbacks):
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0 or not self._membership.registered:
                    hand = sum(state.partitions[where].in_hand for where in lose)
                    _LOG.warning(
                        "%d delivered messages of %s are not acknowledged and will be repeated", hand, _named(lose)
                    )
                    return
                state.changed.wait(left_s)

    def _drop(self, places: Collection[TopicPartition], *, saving: bool = False) -> None:
        """Stop owning these partitions; unsaved positions are kept. ``saving``: the caller holds that lock."""
        gone = [where for where in places if where in self._state.partitions]
        if not gone:
            return
        with nullcontext() if saving else self._saving:
            self._saver.keep(self._state.remove(gone))
        _LOG.info("group %s: released %s", self._membership.group, _named(gone))

    def _take_over(self, claimed: set[TopicPartition]) -> MetaqError | None:
        """Read claimed partitions from this consumer's position, else from the group's offset; return why some cannot
        be.
        """
        with self._saving:
            self._drop([where for where, one in self._state.partitions.items() if one.lost], saving=True)
            stored = loaded = self._storage.load(self._membership.group, claimed)
            changed = [
                where
                for where in claimed & self._state.partitions.keys()
                if where in stored and self._is_behind(where, stored[where])
            ]
            self._state.remove(changed)  # another consumer has read them meanwhile
            if self._incarnations is not None:
                stored = self._incarnations.checked(stored, claimed - set(self._state.partitions))
            self._saver.forget({where for where, offset in stored.items() if offset != loaded.get(where)})
            self._state.note_loaded(stored, claimed)
            fresh = claimed - set(self._state.partitions)
            starts = {where: stored[where] for where in fresh if where in stored} | self._saver.take_kept(fresh, stored)
            begun, saved, failed = self._begin(fresh - starts.keys())
        self._state.keep(claimed & self._state.partitions.keys())
        self._add({**starts, **begun}, {**stored, **saved})
        return failed

    def _is_behind(self, where: TopicPartition, stored: GroupOffset) -> bool:
        one = self._state.partitions[where]
        return is_further(stored, one.saved, one.position)

    def _begin(
        self, places: Collection[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, GroupOffset], Mapping[TopicPartition, GroupOffset], MetaqError | None]:
        """Return where the group begins in partitions that none of its members has read, which of these offsets are
        saved, and why it cannot begin in some of them.
        """
        starts: dict[TopicPartition, GroupOffset] = {}
        failed: MetaqError | None = None
        for where in sorted(places):
            try:
                starts[where] = self._start(where)
            except MetaqError as error:
                if not error.retryable:
                    raise
                failed = error
        begun, saved = self._saver.save_first(starts)
        return begun, saved, failed

    def _start(self, where: TopicPartition) -> GroupOffset:
        try:
            return self._starts.resolve(where, None if self._first is None else self._first.since_ms(where))
        except KeyError:
            raise _Unknown(where) from None

    def _add(self, starts: Mapping[TopicPartition, GroupOffset], stored: Mapping[TopicPartition, GroupOffset]) -> None:
        if not starts:
            return
        state = self._state
        with state.lock:
            state.generation += 1
            new = [self._make(where, start, state.generation, stored.get(where)) for where, start in starts.items()]
            state.add(new)
        _LOG.info("group %s: assigned %s", self._membership.group, _named(starts))

    def _leave(self) -> None:
        try:
            self._save_at_end()
        finally:
            self._state.remove(list(self._state.partitions))
            self._membership.close()
            self._storage.close()

    def _save_at_end(self) -> None:
        membership = self._membership
        if not (membership.connected and membership.registered):
            self._claimed.clear()
        if isinstance(self._storage, BoundedStorage):
            self._storage.hurry(STORAGE_S)  # again: the step before may have waited for a server
        try:
            self.save()
            self._require_saved()
            if self._claimed:
                membership.release(self._claimed)
        except MetaqError as error:
            text = "group %s: the last positions are not saved, messages of %s will be repeated: %s"
            _LOG.error(text, membership.group, self._named_unsaved(), error)

    def _require_saved(self) -> None:
        """Raise if positions are unsaved because a broker is away."""
        unsaved = {*self._state.unsaved(set(self._state.partitions)), *self._saver.kept()}
        away = {where.partition.broker for where in unsaved} & self._offsets_away
        if away:
            raise _Waits(f"broker {', '.join(map(str, sorted(away, key=str)))} is away")

    def _named_unsaved(self) -> str:
        """Name the partitions whose positions are not saved, and where the next consumer starts."""
        state = self._state
        with state.lock:
            saved = {where: state.partitions[where].saved for where in state.unsaved(state.partitions)}
        saved |= self._saver.kept()
        texts = (
            f"{where} from {'where the group begins' if offset is None else f'offset {offset.offset}'}"
            for where, offset in sorted(saved.items(), key=lambda pair: pair[0])
        )
        return ", ".join(texts) or "no partition"


@dataclass(frozen=True, slots=True)
class _FirstView:
    """The partitions that there were when a consumer began, at ``now_ms``."""

    partitions: frozenset[TopicPartition]
    brokers: frozenset[int | str]
    now_ms: int

    @classmethod
    def of(cls, view: GroupView, now_ms: int) -> Self:
        found = frozenset(TopicPartition(topic, each) for topic, some in view.partitions.items() for each in some)
        return cls(found, frozenset(where.partition.broker for where in found), now_ms)

    def since_ms(self, where: TopicPartition) -> int | None:
        """Return from when on a partition's messages are new; ``None``: it was there. A broker that was there has no
        older messages in it.
        """
        if where in self.partitions:
            return None
        return 0 if where.partition.broker in self.brokers else self.now_ms


class _Waits(MetaqError):
    """Another consumer blocks this one, and may leave."""

    retryable = True


class _Unknown(MetaqError):
    """No known broker has ``where``."""

    retryable = True

    def __init__(self, where: TopicPartition) -> None:
        super().__init__(where)

    def __str__(self) -> str:
        return f"no known broker has {self.args[0]}"


def _is_there(where: TopicPartition, view: GroupView) -> bool:
    return where.partition in view.partitions.get(where.topic, ())


def _named(places: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(places)))
