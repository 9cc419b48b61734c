"""A connection of which a request raises what nobody expects."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.app import Broker
from metaq_broker.operate.config.configuration import parse
from waiting import in_loop


@in_loop
async def test_a_defect_ends_its_connection_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read is answered when the put is durable: nobody who has received its bytes hears of the defect."""

    def broken(*_arguments: object) -> None:
        raise RuntimeError("a defect")

    broker = Broker(parse(f"{system_section(1, dataPath=tmp_path)}[topic=t]\n".encode()), None, lambda: None)
    await broker.open()
    try:
        await broker.serve()
        monkeypatch.setattr(broker.engine, "get", broken)
        (reader, writer), (other_reader, other_writer) = [
            await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(2)
        ]
        writer.write(b"put t 0 1 0 1\r\nx" + b"get t g 0 0 100 2\r\n")
        assert await reader.read() == b""
        other_writer.write(b"put t 0 1 0 1\r\nx" + b"quit\r\n")
        assert (await other_reader.read()).startswith(b"result 200 ")
        for each in (writer, other_writer):
            each.close()
    finally:
        await broker.close()
