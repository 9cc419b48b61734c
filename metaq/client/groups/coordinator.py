"""The thread that keeps a consumer in its group: joins, divides partitions, saves positions, leaves.

One place decides, so a partition is never read before the membership says that it is this consumer's, and never
released before what was handed out of it is dealt with::

    lose    hand out no more ─▶ wait for messages in hand (drain_s) ─▶ save ─▶ refuse late acks ─▶ release
    gain    claim, or wait until its owner releases it ─▶ load offset ─▶ read

While the registry of the group is away nothing is handed out and positions are kept. After a lost session a partition
goes on from its kept position, unless the membership finds that somebody else has read it meanwhile.

Where nothing keeps the next owner from reading before a release (``exclusive`` is false), positions are also saved
before the wait, and after it only where nobody else is further; see ``saving``.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from metaq.client.groups.assignment import Order, Strategy, wanted_partitions
from metaq.client.groups.incarnations import Incarnations
from metaq.client.groups.membership import Membership
from metaq.client.groups.owned import Owned
from metaq.client.groups.saving import PositionSaver
from metaq.client.groups.state import GroupState
from metaq.client.offsets import OffsetStorage
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import ConsumerIdInUse, MetaqError, ZooKeeperAway
from metaq.model import TopicPartition
from metaq.net.clock import SYSTEM_CLOCK, Clock

_LOG: Final = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""Pause before a step that could not be done is tried again, and between two looks at partitions of others."""

LOOK_S: Final = 5.0
"""Longest time for which a consumer that the program has dropped stays in its group."""

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
    """See the module. ``start`` it, and ``close`` it at the end; everything else happens in its thread."""

    def __init__(
        self,
        state: GroupState[Any, Any, Any],
        membership: Membership,
        storage: OffsetStorage,
        starts: Starts,
        make: MakeOwned,
        settings: CoordinatorSettings,
        clock: Clock = SYSTEM_CLOCK,
        incarnations: Incarnations | None = None,
    ) -> None:
        self._incarnations = incarnations
        self._state, self._membership, self._storage = state, membership, storage
        self._starts, self._make, self._settings, self._clock = starts, make, settings, clock
        self._saver = PositionSaver(state, membership, storage)
        state.until_s = membership.until_s
        self._saving = threading.Lock()  # who has it may save, and release what was saved
        self._wake = threading.Event()
        self._stopping = False
        self._claimed: set[TopicPartition] = set()
        """Partitions that the membership says are this consumer's, in this session."""
        self._dirty = True
        self._again_s = self._save_due_s = self._refresh_due_s = 0.0
        self._since_s: float | None = None
        self._reader: Callable[[], object] = lambda: None
        self._said = ""
        self._thread = threading.Thread(target=self._run, name=f"metaq-group-{membership.group}", daemon=True)

    def start(self, reader: Callable[[], object]) -> None:
        """Start the thread. It leaves the group when ``reader``, a weak reference, is dead: nobody reads any more."""
        self._reader = reader
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Save positions and leave the group; return whether that was done within ``timeout_s``."""
        self._stopping = True
        self._wake.set()
        with self._state.lock:
            self._state.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def save(self, places: Collection[TopicPartition] | None = None) -> None:
        """Save the positions that have moved, now; of ``places`` only, if given. Any thread may call it.

        Raises:
            MetaqError: The storage could not be used. Positions are kept.
        """
        with self._saving:
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

    def _save(self, places: Collection[TopicPartition] | None = None) -> None:
        if not self._saver.save(places):
            self._note_change()  # look again whose they are

    def _run(self) -> None:
        try:
            self._membership.start(self._note_change, self._note_lost)
            self._save_due_s = self._clock.monotonic() + self._settings.save_s
            while not (self._stopping or self._is_forgotten()):
                self._wake.clear()
                self._try_step()
                self._wake.wait(self._pause_s())
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
        self._dirty = True
        self._wake.set()

    def _note_lost(self) -> None:
        self._state.pause(f"the connection to {self._membership.registry} is lost")

    def _pause_s(self) -> float:
        due = [self._save_due_s, self._clock.monotonic() + LOOK_S]
        if self._again_s:
            due.append(self._again_s)
        if self._refresh_due_s:
            due.append(self._refresh_due_s)
        return max(0.0, min(due) - self._clock.monotonic())

    def _try_step(self) -> None:
        try:
            self._step()
            self._said = ""
        except MetaqError as error:
            if not error.retryable:
                raise
            self._say(f"group {self._membership.group}: {error}; positions are kept, trying again")
            self._state.explain(str(error))
            self._dirty = True
            self._again_s = self._clock.monotonic() + AGAIN_S

    def _say(self, text: str) -> None:
        if text != self._said:
            _LOG.warning("%s", text)
            self._said = text

    def _step(self) -> None:
        now_s = self._clock.monotonic()
        if not self._membership.connected:
            self._state.pause(f"{self._membership.registry} is away")
            return
        if not self._membership.registered:
            self._claimed.clear()
            self._state.pause("the consumer is joining its group")
            if not self._register():
                return
            self._dirty = True
        failed: MetaqError | None = None
        if self._dirty or (self._again_s and now_s >= self._again_s) or self._refresh_is_due(now_s):
            self._dirty, self._again_s = False, 0.0
            failed = self._rebalance()
        if self._membership.connected and self._membership.registered:
            self._state.resume()
        if now_s >= self._save_due_s:
            self._save_due_s = now_s + self._settings.save_s
            self.save()
        if failed is not None:
            raise failed

    def _refresh_is_due(self, now_s: float) -> bool:
        return bool(self._refresh_due_s) and now_s >= self._refresh_due_s

    def _register(self) -> bool:
        """Become a member. The node of a predecessor that has died may stay for its session: wait, but not for ever."""
        now_s = self._clock.monotonic()
        try:
            self._membership.register()
        except ConsumerIdInUse as error:
            self._since_s = self._since_s or now_s
            if now_s - self._since_s >= self._settings.id_wait_s:
                raise
            self._say(f"{error}; waiting")
            self._state.explain(str(error))
            self._again_s = now_s + AGAIN_S
            return False
        self._since_s = None
        return True

    def _rebalance(self) -> MetaqError | None:
        """Read what is this consumer's now; return why it cannot begin with some of it: it goes on with the rest."""
        view = self._membership.view()
        if self._membership.consumer_id not in view.members:
            self._again_s = self._clock.monotonic() + AGAIN_S
            return None  # the session has just ended
        wanted = wanted_partitions(
            *(self._settings.strategy, self._membership.consumer_id, view.members, view.partitions),
            order=self._settings.order,
        )
        owned = set(self._state.partitions)
        now_s = self._clock.monotonic()
        if any(now_s >= self._membership.until_s(where) for where in owned):
            self._state.pause("another consumer may have had the partitions meanwhile")
        self._state.keep(wanted & owned)
        self._release((owned | self._claimed) - wanted)
        claimed = self._membership.claim(wanted)
        self._drop(wanted - claimed)
        self._claimed = claimed
        failed = self._take_over(claimed)
        if missing := wanted - claimed:
            self._again_s = self._clock.monotonic() + AGAIN_S
            _LOG.info("group %s: %d partitions are still another consumer's", self._membership.group, len(missing))
        if (refresh_s := self._membership.refresh_s) is not None:
            self._refresh_due_s = self._clock.monotonic() + refresh_s
        return failed

    def _release(self, lose: set[TopicPartition]) -> None:
        """Give partitions up: drained, saved, fenced, and only then released."""
        if not lose:
            return
        self._drain(lose & set(self._state.partitions) & self._claimed)
        with self._saving:
            try:
                self._save(lose & self._claimed)
            except ZooKeeperAway:
                raise  # nobody else can get the partitions before it is back
            except MetaqError as error:
                _LOG.error("offsets of %s are not saved, messages will be repeated: %s", _named(lose), error)
            self._drop(lose, saving=True)
        self._membership.release(lose & self._claimed)
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
        """Own these no more."""
        gone = [where for where in places if where in self._state.partitions]
        if not gone:
            return
        if saving:
            self._state.remove(gone)
        else:
            with self._saving:
                self._state.remove(gone)
        _LOG.info("group %s: released %s", self._membership.group, _named(gone))

    def _take_over(self, claimed: set[TopicPartition]) -> MetaqError | None:
        """Read what is claimed, from the group's offset, or from where this consumer was; return why some is not."""
        with self._saving:
            self._drop([where for where, one in self._state.partitions.items() if one.lost], saving=True)
            stored = self._storage.load(self._membership.group, claimed)
            changed = [
                where
                for where in claimed
                if where in self._state.partitions
                and where in stored  # else the storage lost it
                and self._membership.is_taken_over(
                    stored[where], self._state.partitions[where].saved, self._state.partitions[where].position
                )
            ]
            self._drop(changed, saving=True)  # read by another consumer meanwhile
            if self._incarnations is not None:
                stored = self._incarnations.checked(stored, claimed - set(self._state.partitions))
            self._state.note_loaded(stored, claimed)
        starts: dict[TopicPartition, GroupOffset] = {}
        failed: MetaqError | None = None
        for where in sorted(claimed - set(self._state.partitions)):
            try:
                starts[where] = stored[where] if where in stored else self._start(where)
            except MetaqError as error:
                if not error.retryable:
                    raise
                failed = error
        self._add(starts, stored)
        return failed

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
            if self._membership.connected and self._membership.registered:
                self._save_at_end()
        finally:
            self._state.remove(list(self._state.partitions))
            self._membership.close()
            self._storage.close()

    def _save_at_end(self) -> None:
        try:
            self.save()
            self._membership.release(self._claimed)
        except MetaqError as error:
            _LOG.error("the last positions are not saved, messages will be repeated: %s", error)


class _Unknown(MetaqError):
    """No broker is known that has ``where``."""

    retryable = True

    def __init__(self, where: TopicPartition) -> None:
        super().__init__(where)

    def __str__(self) -> str:
        return f"no broker is known that has {self.args[0]}"


def _named(places: Collection[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(places)))
