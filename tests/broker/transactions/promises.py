"""What a broker has promised about its transactions, and whether a disk still keeps it.

``Promises`` drives a world like a careful client: before each step it notes what may be true from now on, after the
answer what must be. ``check`` compares that with what a restarted broker says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from metaq_broker.transactions.decisions import Decision
from tx_harness import Harness

from metaq.formats.frames import encode_frame
from metaq.model import TransactionId, Xid

Fate = Literal["absent", "prepared", "committed"]
PartitionKey = tuple[str, int]


@dataclass
class Known:
    """One transaction: its messages per partition, and what may have become of it."""

    messages: dict[PartitionKey, list[bytes]] = field(default_factory=dict)
    fates: set[Fate] = field(default_factory=lambda: {"absent"})


class Promises:
    """``harness`` is set by whoever starts one. Message bodies are unique, so each can be found."""

    harness: Harness

    def __init__(self) -> None:
        self.known: dict[TransactionId, Known] = {}
        self.plain: dict[PartitionKey, list[bytes]] = {}
        self.decided: dict[str, Decision] = {}
        self.deciding: dict[str, Decision] = {}
        self._count = 0

    # ---- steps

    def begin(self, key: TransactionId, *partition_keys: PartitionKey, size: int = 0) -> bool:
        """BEGIN and one put to each of ``partition_keys``; returns whether all of it was accepted."""
        self.known.setdefault(key, Known())
        if self.harness.begin(key) != "200":
            return False
        accepted = [self.put(key, partition_key, size) for partition_key in partition_keys]
        return all(accepted)

    def put(self, key: TransactionId, partition_key: PartitionKey, size: int = 0) -> bool:
        body = self._body(size)
        if self.harness.put(key, body, *partition_key) != "200":
            return False
        self.known[key].messages.setdefault(partition_key, []).append(body)
        return True

    def put_plain(self, partition_key: PartitionKey) -> None:
        body = self._body(0)
        try:
            self.harness.store.put(partition_key, encode_frame(self.harness.store.next_ids(1).first, 0, body))
        except OSError:
            return
        self.plain.setdefault(partition_key, []).append(body)

    def prepare(self, key: Xid) -> str:
        return self._step(key, "prepared", lambda: self.harness.prepare(key), "200 0")

    def commit(self, key: TransactionId, one_phase: bool = True) -> str:
        return self._step(key, "committed", lambda: self.harness.commit(key, one_phase))

    def rollback(self, key: TransactionId) -> str:
        return self._step(key, "absent", lambda: self.harness.rollback(key))

    def by_operator(self, key: Xid, outcome: object, fate: Fate) -> str:
        return self._step(key, fate, lambda: self.harness.by_operator(key, outcome))

    def decide(self, query_id: str, batch_id: int, keys: tuple[Xid, ...]) -> object:
        """Decide; a refusal that leaves the outcome open leaves both possible, for all branches alike."""
        decision = Decision(batch_id, keys, f"contents of {batch_id}" if batch_id % 2 else None)
        self.deciding[query_id] = decision
        answer = self.harness.decide(query_id, *decision)
        if isinstance(answer, Decision):
            self.decided[query_id] = decision
            for key in keys:
                if key in self.known:
                    self.known[key].fates = {"committed"}
        if isinstance(answer, Decision) or "after a restart" not in str(answer):
            del self.deciding[query_id]
        return answer

    def _step(self, key: TransactionId, fate: Fate, step: object, success: str = "200") -> str:
        known = self.known[key]
        before = set(known.fates)
        known.fates.add(fate)
        answer: str = step()  # type: ignore[operator]
        if answer == success or ("is committed" in answer and fate == "committed"):
            known.fates = {fate}
        elif "after a restart" not in answer:
            known.fates = before
        return answer

    def _body(self, size: int) -> bytes:
        self._count += 1
        return b"<message %d>" % self._count + b"." * size

    # ---- what must be true after a restart

    def check(self, harness: Harness) -> None:
        self._check_decisions(harness)
        prepared = {listed.key for listed in harness.tx.prepared()}
        bodies_of = cache(harness.bodies)
        for key, known in self.known.items():
            fate = self._fate(bodies_of, key, known, prepared)
            assert fate in known.fates, f"{key} is {fate}, may be {known.fates}"
            known.fates = {fate}
        for partition_key, bodies in self.plain.items():
            stored = bodies_of(*partition_key)
            assert [body for body in stored if body in set(bodies)] == bodies
        assert prepared <= set(self.known)

    def _fate(
        self, bodies_of: Callable[..., list[bytes]], key: TransactionId, known: Known, prepared: set[TransactionId]
    ) -> Fate:
        found = []
        for partition_key, bodies in known.messages.items():
            stored = bodies_of(*partition_key)
            count = sum(stored.count(body) for body in bodies)
            assert count in (0, len(bodies)), f"{key} is there in part or twice: {count} of {len(bodies)}"
            if count:
                first = stored.index(bodies[0])
                assert stored[first : first + len(bodies)] == bodies, f"{key} does not stand together"
            found.append(bool(count))
        assert len(set(found)) <= 1, f"{key} is in some of its partitions"
        if any(found):
            assert key not in prepared
            return "committed"
        return "prepared" if key in prepared else "absent"

    def _check_decisions(self, harness: Harness) -> None:
        for query_id, expected in self.decided.items():
            if query_id not in self.deciding:
                assert harness.tx.decision(query_id) == expected
        for query_id, asked in self.deciding.items():
            last, keys = harness.tx.decision(query_id), asked.branches
            taken = last == asked
            assert taken or last == self.decided.get(query_id)
            for key in keys:
                if key in self.known:
                    self.known[key].fates = {"committed"} if taken else {"prepared"}
            if taken:
                self.decided[query_id] = asked
        self.deciding.clear()
