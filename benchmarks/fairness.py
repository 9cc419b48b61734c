"""How long an honest client waits beside greedy ones, of each protocol, with and without compiled loops.

    python benchmarks/fairness.py [--scale 1] [--json FILE] [--seconds 3] [--only TEXT]

One client puts a message of 100 bytes, waits for the answer, which comes after fsync, and puts the next; over MetaQ's
protocol and over RocketMQ's. First it is alone, then beside each pattern of greedy clients (``greedy_clients``): many
that keep puts in flight, many that never read an answer, many that have asked for more than they read. All patterns run
at a broker with the compiled loops, and at one without (as without numba, or in a broker's first seconds). The median
is compared with the median of the client alone, the longest wait with 0.3 s. ``--runs`` changes nothing, ``--scale``
multiplies the seconds, ``--only`` takes the patterns with that text in their name.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from figures import Figure, Report, arguments
from greedy_clients import Greedy, HonestClient, greedy_clients, pin
from stage import started

from metaq.formats.checksum import checksum
from metaq.protocols.remoting.command import request
from metaq.protocols.remoting.frames import encode as encode_frame
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.text.commands import Get, Put
from metaq.protocols.text.encode import encode
from metaq.testing.ports import free_port

LIMIT_MS: Final = 300.0
LEAD_S: Final = 1.0
WARM_UP_S: Final = 3.0
WINDOW: Final = 2000
GETS: Final = 2000
BODY: Final = b"x" * 100
STORED, SENT = b"result 200 ", b'"opaque":'
MODES: Final = {
    "compiled": ("-m", "metaq_broker.cli"),
    "not compiled": (
        "-c",
        "import sys; sys.modules['numba'] = None; from metaq_broker.cli import main; sys.exit(main())",
    ),
}
"""Arguments that start a broker with its compiled loops, and without."""


def put(topic: str, crc: int | None = checksum(BODY)) -> bytes:
    return encode(Put(topic, 0, BODY, 0, 1, crc))


def send(topic: str) -> bytes:
    header = SendMessage(
        producer_group="PG",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties="",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    return encode_frame(request(SendMessage.CODE, header.ext(SendMessage.CODE), BODY, opaque=7))


@dataclass(frozen=True, slots=True)
class Stage:
    """Ports of a broker, and the core that clients run on."""

    metaq: int
    rocketmq: int
    core: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A kind of greedy clients. ``reads``: they keep ``window`` requests in flight. ``honest``: the protocol of the
    client that waits.
    """

    name: str
    honest: str
    request: bytes
    connections: int
    window: int = WINDOW
    reads: bool = True
    is_rocketmq: bool = False

    def clients(self, stage: Stage) -> Greedy:
        port = stage.rocketmq if self.is_rocketmq else stage.metaq
        mark = (SENT if self.is_rocketmq else STORED) if self.reads else None
        return Greedy(port, self.request, self.connections, self.window, mark)


def patterns() -> Iterator[Pattern]:
    for count in (10, 50, 200):
        yield Pattern(f"{count} connections that put and read", "MetaQ", put("busy"), count)
    yield Pattern("200 connections that put without a checksum and read", "MetaQ", put("busy", None), 200)
    for count in (20, 100):
        yield Pattern(f"{count} connections that put and never read", "MetaQ", put("busy"), count, 0, reads=False)
    a_get = encode(Get("busy", "g", 0, 0, 1 << 20, 1))
    yield Pattern("500 connections with 2,000 unread gets", "MetaQ", a_get, 500, GETS, reads=False)
    a_get = encode(Get("empty", "g", 0, 0, 1 << 20, 1))
    yield Pattern("500 connections with 2,000 unread gets that find nothing", "MetaQ", a_get, 500, GETS, reads=False)
    to_rocketmq = partial(Pattern, request=send("busy-r"), is_rocketmq=True)
    yield to_rocketmq("200 RocketMQ connections that send and read", "RocketMQ", connections=200)
    yield to_rocketmq(
        "100 RocketMQ connections that send and never read", "RocketMQ", connections=100, window=0, reads=False
    )
    yield to_rocketmq("200 RocketMQ connections that send and read", "MetaQ", connections=200)
    yield Pattern("200 connections that put and read", "RocketMQ", put("busy"), 200)
    yield Pattern("100 connections that put and never read", "RocketMQ", put("busy"), 100, 0, reads=False)


@contextmanager
def ready_broker(mode: str, cores: Sequence[int]) -> Iterator[Stage]:
    """Run a broker on a core of its own; with compiled loops, they are loaded."""
    rocketmq = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="metaq-fairness-") as folder,
        started(
            "dev",
            str(Path(folder) / "data"),
            "--port",
            "0",
            "--rocketmq-port",
            str(rocketmq),
            "--log-level",
            "error",
            program=MODES[mode],
        ) as broker,
    ):
        stage = Stage(broker.address.port, rocketmq, cores[-1])
        pin(broker.pid, cores[0])
        with greedy_clients(Greedy(stage.metaq, put("busy"), 2, WINDOW, STORED), stage.core, []):
            time.sleep(WARM_UP_S)
        yield stage


def honest_client(stage: Stage, name: str) -> HonestClient:
    """Return a client of MetaQ's protocol or of RocketMQ's."""
    if name == "RocketMQ":
        return HonestClient(stage.rocketmq, send("honest-r"), is_rocketmq=True)
    return HonestClient(stage.metaq, put("honest"), is_rocketmq=False)


def measure(report: Report, mode: str, cores: Sequence[int], wanted: str, lasts_s: float) -> None:
    """Add the figures of all patterns at one broker."""
    with ready_broker(mode, cores) as stage:
        alone: dict[str, float] = {}
        for honest in ("MetaQ", "RocketMQ"):
            with closing(honest_client(stage, honest)) as client:
                client.waits_ms(lasts_s / 10)
                alone[honest] = statistics.median(waits := client.waits_ms(lasts_s))
            name = f"{honest} put, alone, {mode}"
            report.add(Figure(f"{name}, median", "ms", alone[honest], better="less"))
            report.add(Figure(f"{name}, worst", "ms", max(waits), LIMIT_MS, "limit", "less", 1.0))
        for pattern in patterns():
            name = f"{pattern.honest} put beside {pattern.name}, {mode}"
            if wanted not in name:
                continue
            answered: list[int] = []
            client = honest_client(stage, pattern.honest)
            began = time.monotonic()
            with closing(client), greedy_clients(pattern.clients(stage), stage.core, answered):
                if pattern.reads:
                    time.sleep(LEAD_S)
                waits = client.waits_ms(lasts_s)
            seconds = time.monotonic() - began
            median = statistics.median(waits)
            report.add(Figure(f"{name}, median", "ms", median, alone[pattern.honest], "alone", "less"))
            report.add(Figure(f"{name}, worst", "ms", max(waits), LIMIT_MS, "limit", "less", 1.0))
            if pattern.reads:
                report.add(
                    Figure(
                        f"answers to the {pattern.name}, beside {pattern.honest}, {mode}",
                        "1/s",
                        sum(answered) / seconds,
                    )
                )


def main(given: Sequence[str] | None = None) -> int:
    """Run the measurements; return the exit status: 1 if an honest client has waited too long."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the honest client, each time")
    parser.add_argument("--only", default="", metavar="TEXT", help="only patterns with this in their name")
    options = parser.parse_args(given)
    cores = sorted(os.sched_getaffinity(0))
    pin(os.getpid(), cores[-1])
    with Report("An honest client beside greedy ones", options.json) as report, ExitStack() as at_end:
        at_end.callback(os.sched_setaffinity, 0, cores)
        for mode in MODES:
            measure(report, mode, cores, options.only, options.seconds * options.scale)
    return int(any(figure.met is False for figure in report.figures))


if __name__ == "__main__":
    sys.exit(main())
