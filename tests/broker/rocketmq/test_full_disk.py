"""A disk that is full for a while: nothing is acknowledged that is not stored, and all goes on when there is space."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Final

from metaq_broker.testing import Fault, FaultyFiles
from remoting_brokers import until
from test_hostile_requests import FrontEnd, base

from metaq.formats.rocketmq.records import read_records
from metaq.formats.stored_records import Wanted
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.offsets import UpdateConsumerOffset
from metaq.protocols.remoting.headers.pulls import QueryMessage
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.remoting.headers.transactions import EndTransaction

KINDS: Final = {
    "plain": "",
    "level": "DELAY\x011",
    "moment": "TIMER_DELAY_MS\x011",
    "half": "TRAN_MSG\x01true\x02PGROUP\x01p",
}
FULL: Final = Fault(1, errno.ENOSPC, kept=0.5, lasting=True, calls=frozenset({"pwrite", "create"}))


async def send(front_end: FrontEnd, body: str, kind: str) -> RemotingCommand:
    ext = {**base(SendMessage.CODE), "a": "p", "f": "0", "i": f"{KINDS[kind]}\x02KEYS\x01{body}"}
    return await front_end.answer(SendMessage.CODE, ext, body.encode())


async def commit_half(front_end: FrontEnd, sent: RemotingCommand) -> RemotingCommand:
    place = int(sent.ext["msgId"][16:], 16)
    ext = {
        **base(EndTransaction.CODE), "producerGroup": "p", "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(place), "commitOrRollback": "8",
    }  # fmt: skip
    del ext["topic"]
    return await front_end.answer(EndTransaction.CODE, ext)


async def commit_offset(front_end: FrontEnd, offset: int) -> RemotingCommand:
    ext = {**base(UpdateConsumerOffset.CODE), "commitOffset": str(offset)}
    return await front_end.answer(UpdateConsumerOffset.CODE, ext)


def bodies(front_end: FrontEnd) -> list[str]:
    batch = front_end.server.store.read("t", 0, 0, Wanted(1000, 1 << 20, 1000))
    return [each.body.decode() for each in read_records(batch.records)]  # type: ignore[union-attr]


async def found(front_end: FrontEnd, key: str) -> bool:
    ext = {
        **base(QueryMessage.CODE), "key": key, "maxNum": "32", "beginTimestamp": "0",
        "endTimestamp": str((1 << 63) - 1), "topic": "t",
    }  # fmt: skip
    return (await front_end.answer(QueryMessage.CODE, ext)).code == 0


def test_sends_offsets_delays_halves_and_keys(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)

    async def run() -> None:
        front_end = FrontEnd(tmp_path, files)
        try:
            for kind in KINDS:
                sent = await send(front_end, f"before {kind}", kind)
                assert sent.code == 0, sent.remark
            assert (await commit_half(front_end, sent)).code == 0
            await until(lambda: len(bodies(front_end)) == 4)
            half = await send(front_end, "waits", "half")
            files.fault = FULL
            for kind in KINDS:
                assert (await send(front_end, f"full {kind}", kind)).code in (1, 14)
            assert (await commit_offset(front_end, 1)).code == 14
            kept = await commit_half(front_end, half)
            assert (kept.code, str(kept.remark)[:18]) == (14, "the commit is kept")
            assert front_end.server.lookups is not None
            await front_end.server.lookups._index.flush()
            assert len(bodies(front_end)) == 4
            files.fault = None
            for kind in KINDS:
                sent = await send(front_end, f"after {kind}", kind)
                assert sent.code == 0, sent.remark
            assert (await commit_half(front_end, sent)).code == 0
            await until(lambda: len(bodies(front_end)) == 9)  # "waits", too: nobody has to commit it again
            assert (await commit_offset(front_end, 2)).code == 0
            expected = sorted([*(f"{when} {kind}" for when in ("before", "after") for kind in KINDS), "waits"])
            assert sorted(bodies(front_end)) == expected
            assert [await found(front_end, body) for body in ("before", "after", "full")] == [True, True, False]
        finally:
            await front_end.close()

    asyncio.run(run())
