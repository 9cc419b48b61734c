"""``metaq bench put|get``: measures how fast a cluster stores or delivers messages, with percentiles of the latency."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import topic_name
from metaq.cli.command import argument, command
from metaq.cli.status_line import StatusLine

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.operate.bench import Measured

_PERCENTS: Final = (50.0, 90.0, 99.0, 99.9)
_LATENCIES: Final = ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms")
_COLUMNS: Final = ("does", "messages", "messages_per_s", "mib_per_s", *_LATENCIES, "cpu_s_per_million")
_CONNECTIONS_MAX: Final = 1000


@command(
    "bench",
    "measure how fast messages are put, or got",
    argument("does", choices=["put", "get"], help="put: writes to the topic; get: reads what it holds"),
    argument("topic", type=topic_name, metavar="TOPIC"),
    argument("-n", "--count", metavar="N", help="messages (default: put 10,000; get all)"),
    argument("--size", metavar="BYTES", default="100", help="of a message that is put (default 100)"),
    argument("--connections", metavar="N", default="1", help="side by side (default 1)"),
    argument("--batch", metavar="N", help="messages of a request (default: put 1), or waited for (get 500)"),
    argument("--rate", metavar="N", help="messages a second at most, of all connections together"),
    argument("--json", action="store_true", help="one JSON object"),
    examples=("put t --count 2", "get t"),
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.cli.output import print_rows
    from metaq.operate import bench

    puts = options.does == "put"
    given = options.count if options.count is not None else ("10000" if puts else None)
    load = bench.Load(
        topic=options.topic,
        count=None if given is None else _number("--count", given, 1 << 40),
        size=_bytes(options.size),
        connections=_number("--connections", options.connections, _CONNECTIONS_MAX),
        batch=_number("--batch", options.batch or ("1" if puts else "500"), 1 << 20),
        rate=None if options.rate is None else float(_number("--rate", options.rate, 1 << 40)),
    )
    progress = bench.BenchProgress(load.count if puts else None)
    with StatusLine().progress(lambda: progress.messages, "sent" if puts else "read"):
        measured = (bench.put if puts else bench.get)(profile.connect, load, progress)
    print_rows([_row(options.does, measured)], _COLUMNS, as_json=options.json)
    if measured.error is not None:
        raise measured.error
    if measured.interrupted:
        sys.stdout.flush()
        raise KeyboardInterrupt
    return 0


def _row(does: str, measured: Measured) -> dict[str, object]:
    seconds, count = max(measured.seconds, 1e-9), measured.messages
    row: dict[str, object] = {
        "does": does,
        "messages": count,
        "seconds": measured.seconds,
        "messages_per_s": round(count / seconds),
        "mib_per_s": measured.bytes / seconds / (1 << 20),
        "cpu_s_per_million": measured.cpu_s / count * 1e6 if count else None,
    }
    for percent in (*_PERCENTS, 100.0):
        latency_s = measured.percentile(percent)
        name = "max_ms" if percent == 100 else f"p{percent:g}_ms"
        row[name] = None if latency_s is None else latency_s * 1000
    return row


def _number(name: str, text: str, limit: int) -> int:
    if not text.replace("_", "").isdecimal() or not 1 <= int(text) <= limit:
        raise ValueError(f"{name} {text}: expected a number, 1..{limit}")
    return int(text)


def _bytes(text: str) -> int:
    from metaq.sizes import parse_size

    try:
        size = parse_size(text)
    except ValueError as error:
        raise ValueError(f"--size {text}: {error}") from None
    if size < 0:
        raise ValueError(f"--size {text}: expected bytes, 0 or more")
    return size
