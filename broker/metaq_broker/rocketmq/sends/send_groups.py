"""Groups sends of one step of the event loop: sends to one queue are stored as one block, each with its own
response.

A block costs one write, one wait for the disk and one pass of the engine's checks for any number of sends. No send
waits for data that has not arrived: the block is made at the end of the step, or when it has ``GROUP_BYTES_MAX``. If a
block is refused because of an invalid frame, its sends are stored one by one, so that only invalid ones are refused.
"""

from __future__ import annotations

import asyncio
from typing import Final

from metaq.formats.frame_block import FrameBlock
from metaq_broker.log.engine.outcomes import StorageFailed
from metaq_broker.loop_step import LoopStep
from metaq_broker.rocketmq.messages.message_store import MessageStore, OnStored, WaitingFrames

GROUP_BYTES_MAX: Final = 1 << 20
"""A group of this size accepts no more sends: a block is never divided between segments."""


class _Group:
    """Sends to one queue: the frames and the callback of each."""

    __slots__ = ("byte_count", "sends")

    def __init__(self) -> None:
        self.sends: list[WaitingFrames] = []
        self.byte_count = 0


class SendGroups:
    """Used on one event loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store, self._step = store, LoopStep.of(asyncio.get_running_loop())
        self._groups: dict[tuple[str, int], _Group] = {}

    def add(self, topic: str, queue: int, frames: FrameBlock, done: OnStored) -> None:
        """Store ``frames`` of one send, as ``MessageStore.append_frames`` does, at the end of this step."""
        key = topic, queue
        group = self._groups.get(key)
        if group is None:
            if not self._groups:
                self._step.at_end(self._store_all)
            group = self._groups[key] = _Group()
        group.sends.append((frames, done))
        group.byte_count += len(frames.data)
        if group.byte_count >= GROUP_BYTES_MAX:
            del self._groups[key]
            self._store_group(key, group)

    def _store_all(self) -> None:
        groups, self._groups = self._groups, {}
        for key, group in groups.items():
            self._store_group(key, group)

    def _store_group(self, key: tuple[str, int], group: _Group) -> None:
        try:
            self._store.append_frames(*key, group.sends)
        except Exception as failure:  # even after a bug, every client must get a response
            asyncio.get_running_loop().call_exception_handler({"message": "a send failed", "exception": failure})
            for _, done in group.sends:
                done(StorageFailed(f"{type(failure).__name__}: {failure}"))
