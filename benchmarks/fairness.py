"""How long an honest client waits beside greedy ones, of each protocol, with and without compiled loops, and with TLS.

    python benchmarks/fairness.py [--scale 1] [--json FILE] [--seconds 3] [--only TEXT]

One client puts a message of 100 bytes, waits for the answer, which comes after fsync, and puts the next; over MetaQ's
protocol and over RocketMQ's. First it is alone, then beside each pattern of greedy clients (``greedy_clients``): many
that keep puts in flight, many that never read an answer, many that have asked for more than they read. All patterns run
at a broker with the compiled loops, at one without (as without numba, or in a broker's first seconds), and at one with
TLS, where all connections are encrypted. The median is compared with the median of the client alone, the longest wait
with 0.3 s. ``--runs`` changes nothing, ``--scale`` multiplies the seconds, ``--only`` takes the patterns with that text
in their name.
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
from typing import Final, NamedTuple

from figures import Figure, Report, arguments
from greedy_clients import Greedy, HonestClient, greedy_clients, pin
from stage import started

from metaq.formats.checksum import checksum
from metaq.protocols.remoting.command import request
from metaq.protocols.remoting.frames import encode as encode_frame
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, PullMessage
from metaq.protocols.remoting.headers.sends import SendMessage
from metaq.protocols.text.commands import Get, Put
from metaq.protocols.text.encode import encode
from metaq.testing.ports import free_port

LIMIT_MS: Final = 300.0
LEAD_S: Final = 1.0
WARM_UP_S: Final = 3.0
WINDOW: Final = 2000
UNREAD: Final = 2000
"""Requests of a connection that never reads."""
BODY: Final = b"x" * 100
STORED, SENT = b"result 200 ", b'"opaque":'
WITHOUT_NUMBA: Final = "import sys; sys.modules['numba'] = None; from metaq_broker.cli import main; sys.exit(main())"


class Mode(NamedTuple):
    """How a broker runs: the interpreter's arguments that start it, and whether its ports speak TLS only."""

    program: Sequence[str] = ("-m", "metaq_broker.cli")
    tls: bool = False


MODES: Final = {"compiled": Mode(), "not compiled": Mode(("-c", WITHOUT_NUMBA)), "TLS": Mode(tls=True)}


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


def pull(topic: str) -> bytes:
    header = PullMessage(
        consumer_group="CG",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return encode_frame(request(PullMessage.CODE, header.ext(PullMessage.CODE), opaque=7))


@dataclass(frozen=True, slots=True)
class Stage:
    """Ports of a broker, whether they speak TLS, and the core that clients run on."""

    metaq: int
    rocketmq: int
    tls: bool
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
        return Greedy(port, self.request, self.connections, self.window, mark, stage.tls)


def patterns() -> Iterator[Pattern]:
    for count in (10, 50, 200):
        yield Pattern(f"{count} connections that put and read", "MetaQ", put("busy"), count)
    yield Pattern("200 connections that put without a checksum and read", "MetaQ", put("busy", None), 200)
    for count in (20, 100):
        yield Pattern(f"{count} connections that put and never read", "MetaQ", put("busy"), count, 0, reads=False)
    a_get = encode(Get("busy", "g", 0, 0, 1 << 20, 1))
    for honest in ("MetaQ", "RocketMQ"):
        yield Pattern("500 connections with 2,000 unread gets", honest, a_get, 500, UNREAD, reads=False)
    a_get = encode(Get("empty", "g", 0, 0, 1 << 20, 1))
    yield Pattern("500 connections with 2,000 unread gets that find nothing", "MetaQ", a_get, 500, UNREAD, reads=False)
    to_rocketmq = partial(Pattern, request=send("busy-r"), is_rocketmq=True)
    for count in (10, 50, 200):
        yield to_rocketmq(f"{count} RocketMQ connections that send and read", "RocketMQ", connections=count)
    yield to_rocketmq(
        "100 RocketMQ connections that send and never read", "RocketMQ", connections=100, window=0, reads=False
    )
    yield to_rocketmq("200 RocketMQ connections that send and read", "MetaQ", connections=200)
    unread_pulls = partial(Pattern, request=pull("busy-r"), window=UNREAD, reads=False, is_rocketmq=True)
    for honest in ("RocketMQ", "MetaQ"):
        yield unread_pulls("500 RocketMQ connections with 2,000 unread pulls", honest, connections=500)
    yield Pattern("200 connections that put and read", "RocketMQ", put("busy"), 200)
    yield Pattern("100 connections that put and never read", "RocketMQ", put("busy"), 100, 0, reads=False)


def settings(folder: Path, rocketmq_port: int, tls: bool) -> str:
    """Return a broker's configuration; with TLS, it has a certificate of its own."""
    system = f"brokerId=0\nhostName=127.0.0.1\nnumPartitions=1\nserverPort=0\ndataPath={folder / 'data'}\n"
    system += "unflushThreshold=0\nunflushInterval=10000\nmaxSegmentSize=1024*1024*1024\nmaxTransferSize=1024*1024\n"
    if tls:
        import trustme  # of the extra [dev]

        certificate = folder / "server.pem"
        trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        system += f"tlsCertFile={certificate}\n"
    return f"[system]\n{system}[topic=*]\n[rocketmq]\nenabled=true\nbrokerIP1=127.0.0.1\nport={rocketmq_port}\n"


@contextmanager
def ready_broker(mode: Mode, cores: Sequence[int]) -> Iterator[Stage]:
    """Run a broker on a core of its own, which has messages of both protocols, and has loaded what it compiles."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="metaq-fairness-") as name:
        ini = Path(name) / "server.ini"
        ini.write_text(settings(Path(name), port, mode.tls))
        with started("start", "-f", str(ini), "--log-level", "error", program=mode.program) as broker:
            stage = Stage(broker.address.port, port, mode.tls, cores[-1])
            pin(broker.pid, cores[0])
            for greedy in (
                Greedy(stage.metaq, put("busy"), 2, WINDOW, STORED, mode.tls),
                Greedy(stage.rocketmq, send("busy-r"), 2, WINDOW, SENT, mode.tls),
            ):
                with greedy_clients(greedy, stage.core, []):
                    time.sleep(WARM_UP_S)
            yield stage


def honest_client(stage: Stage, name: str) -> HonestClient:
    """Return a client of MetaQ's protocol or of RocketMQ's."""
    if name == "RocketMQ":
        return HonestClient(stage.rocketmq, send("honest-r"), is_rocketmq=True, tls=stage.tls)
    return HonestClient(stage.metaq, put("honest"), is_rocketmq=False, tls=stage.tls)


def measure(report: Report, mode: str, cores: Sequence[int], wanted: str, lasts_s: float) -> None:
    """Add the figures of all patterns at one broker."""
    with ready_broker(MODES[mode], cores) as stage:
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
