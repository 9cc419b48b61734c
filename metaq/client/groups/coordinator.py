"""The thread that keeps a consumer in its group: joins, divides partitions, saves positions, leaves.

One place decides, so a partition is never read before the membership says that it is this consumer's, and never
released before what was handed out of it is dealt with::

    lose    hand out no more ─▶ wait for messages in hand (drain_s) ─▶ save ─▶ refuse late acks ─▶ release
    gain    claim, or wait until its owner releases it ─▶ load offset ─▶ read

While the registry of the group is away nothing is handed out and positions are kept. When its session has ended, a
consumer does not know any more whose its partitions are. It *suspends* those that it does not get back at once, because
their brokers are not registered again, or another consumer (or its own old session) has them: they are not read, what
is in hand may be settled, and their positions are saved where nobody has saved another one since. A partition that this
consumer has read goes on from its position, unless another consumer has saved a later one. ``Starts`` are asked only
for a partition of which neither the storage nor this consumer knows anything; what they say is saved at once.

Where nothing keeps the next owner from reading before a release (``exclusive`` is false), positions are also saved
before the wait, and after it only where nobody else is further; see ``saving``.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from metaq.client.groups.assignment import Order, Strategy, wanted_partitions
from metaq.client.groups.bounded import BoundedStorage
from metaq.client.groups.incarnations import Incarnations, StoredOffsets
from metaq.client.groups.membership import Membership
from metaq.client.groups.owned import Owned
from metaq.client.groups.saving import PositionSaver
from metaq.client.groups.schedule import Schedule
from metaq.client.groups.state import GroupState
from metaq.client.offsets import OffsetStorage
from metaq.discovery.zk_groups import GroupView
from metaq.discovery.zk_layout import GroupOffset, is_further
from metaq.errors import ConsumerIdInUse, MetaqError, ZooKeeperAway
from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock

STORAGE_S: Final = 5.0
"""Longest wait at the end for a storage that hangs."""

_LOG: Final = logging.getLogger(__name__)

MakeOwned = Callable[[TopicPartition, GroupOffset, int, GroupOffset | None], Owned[Any, Any, Any]]
"""(partition, where to begin, generation, what the offset storage has) -> the partition as this consumer reads it."""


class Starts(Protocol):
    """Who knows where a group begins in a partition that it has no offset of."""

    def resolve(self, where: TopicPartition) -> GroupOffset: ...


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """``save_s``: period of saving. ``drain_s``: longest wait for messages in hand. ``id_wait_s``: for a free id."""

    strategy: Strategy
    save_s: float = 5.0
    drain_s: float = 20.0
    id_wait_s: float = 60.0
    callbacks: bool = False
    """Whether the program wants to know of revoked partitions before they are released."""
    order: Order = str
    """By what partitions are sorted before they are divided."""


class Coordinator:
    """``start`` it, and ``close`` it at the end; everything else happens in its thread."""

    def __init__(
        self,
        state: GroupState[Any, Any, Any],
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
        self._saving = threading.Lock()  # who has it may save, and release what was saved
        self._wake = threading.Event()
        self._stopping = False
        self._schedule = Schedule(settings.save_s, clock)
        self._claimed: set[TopicPartition] = set()
        """Partitions that the membership says are this consumer's, in this session."""
        self._waits_since_s: float | None = None
        """Since when another consumer has this one's id."""
        self._reader: Callable[[], object] = lambda: None
        self._said: dict[str, str] = {}  # what could not be done -> why
        self._thread = threading.Thread(target=self._run, name=f"metaq-group-{membership.group}", daemon=True)

    def start(self, reader: Callable[[], object]) -> None:
        """Start the thread. It leaves the group when ``reader``, a weak reference, is dead: nobody reads any more."""
        self._reader = reader
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Save positions and leave the group; return whether that was done within ``timeout_s``."""
        self._stopping = True
        self._wake.set()
        if isinstance(self._storage, BoundedStorage):
            self._storage.hurry(STORAGE_S)
        with self._state.lock:
            self._state.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            text = "group %s: it is not left after %.0f s; if that fails, messages will be repeated of %s"
            _LOG.error(text, self._membership.group, timeout_s, self._named_unsaved())
        return not self._thread.is_alive()

    def save(self, places: Collection[TopicPartition] | None = None) -> None:
        """Save the positions that have moved, now; of ``places`` only, if given. Any thread may call it.

        Raises:
            MetaqError: The storage could not be used. Positions are kept.
        """
        with self._saving:
            if places is None:
                self._saver.save_unclaimed(self._unclaimed())
            self._save(places)

    def check_incarnations(self, broker: int | str) -> set[TopicPartition]:
        """Return the partitions of a broker that are others now than when they were assigned; they are begun anew.

        What was handed out of them cannot be settled any more. Any thread may call it.

        Raises:
            MetaqError: The brokers could not be asked.
        """
        state = self._state
        if self._incarnations is None:
            return set()
        with state.lock:
            places = [
                where for where, one in state.partitions.items() if where.partition.broker == broker and not one.lost
            ]
        changed = self._incarnations.changed(places)
        if changed:
            with state.lock:
                for where in changed & state.partitions.keys():
                    state.partitions[where].lost = True
            self._note_change()
        return changed

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Know nothing any more of partitions that are not read now: somebody has set their offsets."""
        with self._saving:
            self._saver.forget(places)

    def _save(self, places: Collection[TopicPartition] | None = None) -> None:
        if not self._saver.save(places):
            self._note_change()  # look again whose they are

    def _run(self) -> None:
        try:
            self._membership.start(self._note_change, self._note_lost)
            while not (self._stopping or self._is_forgotten()):
                self._wake.clear()
                self._wake.wait(self.step())
        except Exception as error:  # the reader raises it
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
        """Do what is due; return for how long there is nothing to do, unless something is reported.

        Raises:
            MetaqError: The consumer cannot go on.
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
        """Do something; return whether that was done, else say why not."""
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
        """Say what went wrong: in the log once, as long as it stays the same; in ``paused``, if nothing is read."""
        if text not in self._said.values():
            _LOG.warning("group %s: %s; positions are kept, trying again", self._membership.group, text)
        self._said[kind] = text
        self._state.explain(text)

    def _is_member(self) -> bool:
        """Become a member, if this consumer is none; return whether it is one."""
        if self._membership.registered:
            return True
        self._claimed.clear()
        self._state.pause("the consumer is joining its group")
        if not self._try("join", self._register):
            return False
        self._schedule.note_change()
        return True

    def _register(self) -> None:
        """Become a member. The node of a predecessor that has died may stay for its session: wait, but not for ever."""
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
        """Divide the partitions, and hand out messages of those that are this consumer's."""
        failure = self._rebalance()
        if self._membership.connected and self._membership.registered:
            self._state.resume()
        if failure is not None:
            raise failure

    def _rebalance(self) -> MetaqError | None:
        """Read what is this consumer's now; return why it cannot begin with some of it: it goes on with the rest."""
        view = self._membership.view()
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
        self._release(self._claimed - wanted)
        others = {where for where in owned - self._claimed - wanted if _is_there(where, view)}
        self._save_suspended()
        self._drop(others)
        claimed = self._membership.claim(wanted)
        self._state.suspend(set(self._state.partitions) - claimed)
        self._claimed = claimed
        failed = self._take_over(claimed)
        if not failed and claimed == wanted:
            self._schedule.divided(self._membership.refresh_s)
        elif missing := wanted - claimed:
            _LOG.info("group %s: %d partitions are still another consumer's", self._membership.group, len(missing))
        return failed

    def _save_suspended(self) -> None:
        """Save positions of partitions that were this consumer's, where nobody has saved one since, if possible."""

        def work() -> None:
            with self._saving:
                self._saver.save_unclaimed(self._unclaimed(), and_kept=True)

        self._try("save the others", work)

    def _unclaimed(self) -> set[TopicPartition]:
        return set(self._state.partitions) - self._claimed

    def _release(self, lose: set[TopicPartition]) -> None:
        """Give partitions up: drained, saved, fenced, and only then released."""
        if not lose:
            return
        self._drain(lose & set(self._state.partitions))
        with self._saving:
            try:
                self._save(lose)
            except ZooKeeperAway:
                raise  # nobody else can get the partitions before it is back
            except MetaqError as error:
                _LOG.error("offsets of %s are not saved now, messages may be repeated: %s", _named(lose), error)
            self._drop(lose, saving=True)
        self._membership.release(lose)
        self._claimed -= lose

    def _drain(self, lose: set[TopicPartition]) -> None:
        if not lose:
            return
        state, deadline_s = self._state, self._clock.monotonic() + self._settings.drain_s
        state.revoke(lose)
        if not self._membership.exclusive:
            with suppress(MetaqError), self._saving:  # it is tried again behind the wait
                self._save(lose)  # the next owner may look already
        with state.lock:
            while not self._stopping and not state.drained(lose, callbacks=self._settings.callbacks):
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0 or not self._membership.registered:
                    hand = sum(state.partitions[where].in_hand for where in lose)
                    _LOG.warning("%d messages of %s are not acknowledged; they will be repeated", hand, _named(lose))
                    return
                state.changed.wait(left_s)

    def _drop(self, places: Collection[TopicPartition], *, saving: bool = False) -> None:
        """Own these no more; positions that are not saved yet are kept. ``saving``: the caller has that lock."""
        gone = [where for where in places if where in self._state.partitions]
        if not gone:
            return
        with nullcontext() if saving else self._saving:
            self._saver.keep(self._state.remove(gone))
        _LOG.info("group %s: released %s", self._membership.group, _named(gone))

    def _take_over(self, claimed: set[TopicPartition]) -> MetaqError | None:
        """Read what is claimed, from where this consumer was, else from the group's offset; return why some is not."""
        with self._saving:
            self._drop([where for where, one in self._state.partitions.items() if one.lost], saving=True)
            stored = loaded = self._storage.load(self._membership.group, claimed)
            changed = [
                where
                for where in claimed & self._state.partitions.keys()
                if where in stored and self._is_behind(where, stored[where])
            ]
            self._state.remove(changed)  # read by another consumer meanwhile
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
        """Return where the group begins in partitions that nobody of it has read, what of that is saved, and why it
        cannot begin in some of them.
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
            return self._starts.resolve(where)
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
        try:
            self.save()
            if self._claimed:
                membership.release(self._claimed)
        except MetaqError as error:
            text = "group %s: the last positions are not saved, messages will be repeated of %s: %s"
            _LOG.error(text, membership.group, self._named_unsaved(), error)

    def _named_unsaved(self) -> str:
        """Name the partitions whose positions are not saved, and where the next consumer goes on."""
        state = self._state
        with state.lock:
            saved = {where: state.partitions[where].saved for where in state.unsaved(state.partitions)}
        saved |= self._saver.kept()
        texts = (
            f"{where} from {'where the group begins' if offset is None else f'offset {offset.offset}'}"
            for where, offset in sorted(saved.items(), key=lambda pair: pair[0])
        )
        return ", ".join(texts) or "no partition"


class _Waits(MetaqError):
    """Another consumer is in the way, and may leave."""

    retryable = True


class _Unknown(MetaqError):
    """No broker is known that has ``where``."""

    retryable = True

    def __init__(self, where: TopicPartition) -> None:
        super().__init__(where)

    def __str__(self) -> str:
        return f"no broker is known that has {self.args[0]}"


def _is_there(where: TopicPartition, view: GroupView) -> bool:
    return where.partition in view.partitions.get(where.topic, ())


def _named(places: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(places)))
