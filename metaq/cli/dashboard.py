"""``metaq dashboard``: starts the process that serves the pages and the JSON API of a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from metaq import ports
from metaq.cli.command import argument, command

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile

MODULE: Final = "metaq_console"
"""Not imported: it is a client of the cluster, in a process of its own."""


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return int(text)


@command(
    "dashboard",
    "show the cluster, its messages and Spark queries in a browser",
    argument(
        "--port", type=_port, default=ports.METAQ_DASHBOARD, help="default %(default)s; 0: any free port",
        doc=f"port to listen at, {ports.METAQ_DASHBOARD} by default; 0: any free port",
    ),
    argument("--write", action="store_true", help="allow to send messages, reset offsets, and send dead letters again"),
    argument(
        "--checkpoint", metavar="DIR", action="append", default=[],
        help="a Spark query to show: its checkpointLocation, a local path; may be repeated",
    ),
    argument(
        "--host", default="127.0.0.1", help="address to listen at (default: %(default)s)",
        doc="address to listen at, `127.0.0.1` by default; any other than loopback needs a token",
    ),
    argument(
        "--token-file", metavar="FILE",
        help="file with the token that clients must give, 16 characters or more (or $METAQ_CONSOLE_TOKEN)",
    ),
    argument("--tls-cert", metavar="FILE", help="certificate with its chain, PEM: HTTPS"),
    argument("--tls-key", metavar="FILE", help="its key, PEM, if that is not in the same file"),
    argument(
        "--allow-host", metavar="NAME", action="append", default=[],
        help="a name that browsers use for this server, beside addresses and this machine's name; may be repeated",
    ),
    argument(
        "--proxy", metavar="ADDRESS", action="append", default=[],
        help="address or network of a proxy in front of it, whose X-Forwarded-Proto counts; may be repeated",
    ),
    examples=(),
    abilities=(("`dashboard`", "yes", "yes, without times and counts", "yes, without lists of transactions"),),
)  # fmt: skip
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    sys.stdout.flush()
    # -P: modules of the working folder are not imported
    os.execv(sys.executable, [sys.executable, "-P", "-m", MODULE, *_arguments(options)])


def _arguments(options: argparse.Namespace) -> Iterator[str]:
    """Yield the arguments of the process, which reads the profile itself: no secret of it is in an argument."""
    for name in ("cluster", "profile", "timeout", "host", "port", "token_file", "tls_cert", "tls_key"):
        value = getattr(options, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
    for name in ("allow_host", "proxy", "checkpoint"):
        for value in getattr(options, name):
            yield from (f"--{name.replace('_', '-')}", value)
    if options.write:
        yield "--write"
