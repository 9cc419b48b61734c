"""Requests that are carried out are in memory: how much of them there may be, of one client and of all."""

from __future__ import annotations

from metaq_broker.rocketmq.session import LARGE_BYTES, RemotingLimits
from test_remoting_session import Limits, serving
from waiting import in_loop, until

from metaq.protocols.remoting.command import request


@in_loop
async def test_large_requests_count_for_several() -> None:
    """What is in them is in memory as long as they are carried out."""

    net = Limits(pipelined_requests_max=10)
    async with serving(net=net) as harness:
        peer, other = await harness.connect(), await harness.connect()
        await peer.send(*(request(2, opaque=n, body=bytes(5 * LARGE_BYTES)) for n in range(5)))
        await until(lambda: len(harness.held) == 2)
        await other.send(request(1, opaque=9))
        assert (await other.receive()).opaque == 9
        assert len(harness.held) == 2
        assert harness.remoting.request_bytes > 10 * LARGE_BYTES
        for _ in range(5):
            await until(lambda: bool(harness.held))
            call = harness.held.pop()
            call.answer(call.request.reply())
            await peer.receive()
        await until(lambda: harness.remoting.request_bytes == 0)


@in_loop
async def test_so_do_those_that_want_no_answer() -> None:
    async with serving(net=Limits(pipelined_requests_max=10)) as harness:
        peer = await harness.connect()
        await peer.send(*(request(2, oneway=True, opaque=n) for n in range(20)), request(1, opaque=77))
        await until(lambda: len(harness.held) == 10)
        for call in harness.held[:10]:
            call.answer(call.request.reply())
        await until(lambda: len(harness.held) == 20)
        for call in harness.held[10:]:
            call.leave_unanswered()
        assert (await peer.receive()).opaque == 77
        assert harness.remoting.request_bytes == 0


@in_loop
async def test_too_much_in_all_of_them_is_refused() -> None:
    async with serving(RemotingLimits(request_bytes_max=100_000)) as harness:
        peer, other = await harness.connect(), await harness.connect()
        await peer.send(request(2, opaque=1, body=bytes(100_000)))
        await until(lambda: len(harness.held) == 1)
        await other.send(request(1, oneway=True), request(1, opaque=2))
        busy = await other.receive()
        assert (busy.code, busy.opaque) == (2, 2)
        peer.writer.close()
        await until(lambda: bool(harness.lost))
        assert harness.remoting.request_bytes > 100_000  # it is in memory still
        harness.held[0].answer(harness.held[0].request.reply())
        assert harness.remoting.request_bytes == 0
        await other.send(request(1, opaque=3))
        assert (await other.receive()).code == 0
