"""The arguments of the process: ``python -m metaq_console``, which ``metaq dashboard`` and a broker start."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from metaq import ports
from metaq.client.profile import Profile, ProfileError, parse_timeout, read_profile
from metaq_console.settings import ConsoleSettings, SettingsError

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
TOKEN_VARIABLE: Final = "METAQ_CONSOLE_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 stopped on request, 1 no start, 2 wrong arguments or profile."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = settings_of(options)
    except (SettingsError, ProfileError) as error:
        return _complain(error, EXIT_USAGE)
    try:
        from metaq_console.server import listen, serve

        with listen(settings) if options.fd is None else socket.socket(fileno=options.fd) as listener:
            serve(settings, listener, announce=_announce, with_parent=options.with_parent)
    except ImportError as error:
        return _complain(f'{error.name} is not installed: pip install "metaq-spark[console]"', EXIT_FAILED)
    except SettingsError as error:
        return _complain(error, EXIT_FAILED)
    return EXIT_OK


def settings_of(options: argparse.Namespace) -> ConsoleSettings:
    """Return the settings for parsed arguments, and for the token in the environment.

    Raises:
        SettingsError, ProfileError: An argument or the profile is wrong.
    """
    return ConsoleSettings(
        profile=_profile(options),
        host=options.host,
        port=options.port,
        write=options.write,
        token=_token(options.token_file),
        tls_cert_file=options.tls_cert,
        tls_key_file=options.tls_key,
        allowed_hosts=tuple(options.allow_host),
        proxies=tuple(options.proxy),
        checkpoints=tuple(Path(one).absolute() for one in options.checkpoint),
    )


def _profile(options: argparse.Namespace) -> Profile:
    timeout = None if options.timeout is None else parse_timeout(options.timeout)
    found = read_profile(options.profile, options.cluster, timeout)
    given = {name: getattr(options, name) for name in ("ca_file", "cert_file", "key_file")}
    return dataclasses.replace(found, **{name: value for name, value in given.items() if value is not None})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``settings_of`` reads, except the ones that name the cluster."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=ports.METAQ_DASHBOARD, help="default %(default)s; 0 = any free port"
    )
    parser.add_argument("--write", action="store_true", help="allow what changes something: put, reset, resend")
    parser.add_argument(
        "--token-file", metavar="FILE", help=f"file with the token that clients must send (or ${TOKEN_VARIABLE})"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate with its chain, PEM: HTTPS")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM, if that is not in the same file")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that clients use for this server; may be repeated",
    )
    parser.add_argument(
        "--proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network of a proxy in front of it, whose X-Forwarded-Proto counts; may be repeated",
    )
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="DIR",
        help="checkpointLocation of a Spark query to show; may be repeated",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m metaq_console", description="HTTP access to a cluster.")
    parser.add_argument("-c", "--cluster", help="as for metaq")
    parser.add_argument("--profile", help="as for metaq")
    parser.add_argument("--timeout", help="seconds to wait for an answer of a server")
    for name in ("ca", "cert", "key"):
        parser.add_argument(f"--{name}-file", metavar="FILE", help="PEM, to reach the cluster, as in a profile")
    # of a broker that starts this process: a socket that listens already, and to end with the broker
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    add_arguments(parser)
    return parser


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"token file {file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"port {text!r}: expected 0..65535")
    return int(text)


def _announce(address: str) -> None:
    print(f"metaq console ready on {address}", flush=True)


def _complain(message: object, status: int) -> int:
    print(f"metaq console: {message}", file=sys.stderr)
    return status
