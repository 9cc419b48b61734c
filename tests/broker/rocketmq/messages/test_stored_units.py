"""Sends that are appended as one unit: each is answered by itself, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from metaq_broker.log.engine.outcomes import BlockInvalid, Refusal
from metaq_broker.rocketmq.messages.message_store import EXTRA_BYTES_MAX, StoredBatch
from test_message_store import BORN, Opened, play

from metaq.formats.frame_block import FrameBlock
from metaq.formats.frames import encode_stored
from metaq.formats.stored_form import encode_head
from metaq.formats.stored_records import Wanted

TOO_LONG = 1_000_000 + EXTRA_BYTES_MAX + 1
HEAD = encode_head(0, 0, 5, BORN, 0)


def block(*bodies: bytes) -> FrameBlock:
    return FrameBlock.of([encode_stored(b"", HEAD, b"K\x01v", body) for body in bodies])


def test_a_send_that_is_too_long_is_refused_alone(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        blocks = block(b"a"), block(b"b", bytes(TOO_LONG)), block(b"c", b"d")
        futures: list[asyncio.Future[StoredBatch | Refusal]] = [
            asyncio.get_running_loop().create_future() for _ in blocks
        ]
        opened.store.append_frames("t", 0, [(each, to.set_result) for each, to in zip(blocks, futures, strict=True)])
        first, refused, last = await asyncio.gather(*futures)
        assert isinstance(refused, BlockInvalid)
        assert isinstance(first, StoredBatch)
        assert isinstance(last, StoredBatch)
        assert (first.queue_offset, last.queue_offset, len(last.physical_offsets)) == (0, 1, 2)
        assert opened.bodies() == [b"a", b"c", b"d"]

    play(tmp_path, scenario)


def test_messages_are_stored_also_without_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients or the broker would store them again, and they are read as soon as there is a number."""

    async def scenario(opened: Opened) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(opened.state, "bytes_max", 0)
            for number in range(2):
                stored = await opened.send(b"x")
                assert (stored.queue_offset, list(stored.physical_offsets)) == (number, [0])
                assert stored.unnumbered is not None
        assert await opened.numbered(opened.store.read("t", 0, 0, Wanted(9, 999, 9))) is None
        assert opened.bodies() == [b"x", b"x"]

    play(tmp_path, scenario)


def test_an_answer_that_fails_leaves_the_others_answered(tmp_path: Path) -> None:
    async def scenario(opened: Opened) -> None:
        loop, reported = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _loop, context: reported.append(context["message"]))
        last: asyncio.Future[StoredBatch | Refusal] = loop.create_future()

        def fails(_stored: StoredBatch | Refusal) -> None:
            raise ValueError("a defect")

        opened.store.append_frames("t", 0, [(block(b"a"), fails), (block(b"b"), last.set_result)])
        stored = await last
        assert isinstance(stored, StoredBatch)
        assert stored.queue_offset == 1
        assert reported == ["a durability callback failed"]

    play(tmp_path, scenario)
