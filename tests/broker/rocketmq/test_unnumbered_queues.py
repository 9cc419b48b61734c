"""Sends to a queue that gets no number for its physical offsets now: they are stored, and nobody stores them again."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from metaq_broker.log.state.state_mark import FILE_NAME
from remoting_brokers import until
from stored import QuickFiles
from test_full_disk import bodies, send
from test_hostile_requests import FrontEnd

from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.protocols.remoting.codes import ResponseCode


class NoFileForTheMark(QuickFiles):
    """The process has too many open files to write the mark, from which numbers come, while it ``is_full``."""

    is_full = True

    def write_atomic(self, path: Path, data: bytes) -> None:
        if self.is_full and path.name == FILE_NAME:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        super().write_atomic(path, data)


def test_a_send_says_that_it_is_stored_and_has_no_message_id(tmp_path: Path) -> None:
    files = NoFileForTheMark()

    async def run() -> None:
        front_end = FrontEnd(tmp_path, files)
        try:
            for number in range(2):
                sent = await send(front_end, f"{number}", "plain")
                assert sent.code == ResponseCode.FLUSH_DISK_TIMEOUT, sent.remark
                assert (sent.ext["queueId"], sent.ext["queueOffset"]) == ("0", str(number))
                assert OffsetMessageId.parse(sent.ext["msgId"]).physical_offset == 0
                assert "Too many open files" in (sent.remark or "")
            half = await send(front_end, "half", "half")
            assert half.code == ResponseCode.SYSTEM_ERROR  # nobody sees it, and it could not be ended
            files.is_full = False
            sent = await send(front_end, "2", "plain")
            assert (sent.code, sent.ext["queueOffset"]) == (0, "2"), sent.remark
            assert bodies(front_end) == ["0", "1", "2"]
        finally:
            await front_end.close()

    asyncio.run(run())


class NoNumbers:
    """A mark that reserves no number."""

    first_number = 0

    def reserve(self, number: int) -> None:
        raise OSError(errno.EMFILE, f"number {number}")


def test_a_delayed_message_is_delivered_once_to_such_a_queue(tmp_path: Path) -> None:
    async def run() -> None:
        front_end = FrontEnd(tmp_path)
        numbers = front_end.server.store.numbers
        try:
            assert (await send(front_end, "delayed", "level")).code == 0
            mark, numbers._reserved = numbers._reserved, NoNumbers()
            store = front_end.server.store
            await until(lambda: store.max_offset("t", 0) > 0)
            await asyncio.sleep(2.5)  # it would be stored again every second
            numbers._reserved = mark
            assert (await send(front_end, "next", "plain")).code == 0
            assert bodies(front_end) == ["delayed", "next"]
        finally:
            await front_end.close()

    asyncio.run(run())
