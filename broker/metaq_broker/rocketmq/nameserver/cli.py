"""The ``metaq-namesrv`` command: reads arguments and configuration, then runs the name server until it is stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import metaq
from metaq_broker.operate.config.access import is_loopback
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.monitoring.diagnostics import FORMATS, LEVELS, log_to_stderr
from metaq_broker.rocketmq.nameserver.app import run
from metaq_broker.rocketmq.nameserver.config import NameServerConfig, load, to_text
from metaq_broker.start_errors import StartFailed

_EXPOSED = (
    "WARNING: bindAddress={address} without TLS: every machine that reaches this port can register brokers and change "
    "routes. Set bindAddress=127.0.0.1, or tls.server.certPath, tls.server.trustCertPath, tls.server.mode=enforcing "
    "and tls.server.need.client.auth=require"
)

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 stopped as asked, 1 no start, 2 wrong arguments or configuration."""
    options = _parser().parse_args(arguments)
    try:
        if options.command != "start":
            _parser().print_help(sys.stderr)
            return EXIT_USAGE
        return _start(options)
    except ConfigError as error:
        return _complain(str(error), EXIT_USAGE)
    except StartFailed as error:
        return _complain(str(error), EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metaq-namesrv", description="A name server for RocketMQ brokers and clients."
    )
    parser.add_argument("--version", action="version", version=f"metaq-namesrv {metaq.__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    start = commands.add_parser("start", help="run a name server")
    start.add_argument("-c", dest="file", type=Path, metavar="FILE", help="the configuration, a properties file")
    start.add_argument("-p", dest="show", action="store_true", help="print the configuration and end")
    start.add_argument("--log-level", choices=LEVELS, default="info", help="default %(default)s")
    start.add_argument("--log-format", choices=FORMATS, default="text", help="default %(default)s")
    return parser


def _start(options: argparse.Namespace) -> int:
    config, file = _configuration(options.file)
    if options.show:
        print(to_text(config), end="")
        return EXIT_OK
    log_to_stderr(options.log_level, options.log_format)
    if not config.tls_cert_file and not is_loopback(config.bind_address):
        print(f"metaq-namesrv: {_EXPOSED.format(address=config.bind_address)}", file=sys.stderr)
    run(config, file)
    return EXIT_OK


def _configuration(given: Path | None) -> tuple[NameServerConfig, Path]:
    if given is not None:
        file, text = given.absolute(), _read(given)
    else:
        file = Path(load("", "defaults")[0].config_store_path)
        text = _read(file) if file.exists() else ""
    config, warnings = load(text, str(file))
    for warning in warnings:
        print(f"metaq-namesrv: {warning}", file=sys.stderr)
    return config, file


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from None


def _complain(message: str, status: int) -> int:
    print(f"metaq-namesrv: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
