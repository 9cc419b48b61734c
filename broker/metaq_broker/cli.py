"""The ``metaq-broker`` command: parses arguments, reads the configuration, and runs the broker until it is stopped."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import metaq
from metaq import ports
from metaq.model import Address
from metaq_broker.dev import dashboard_port, data_folder, dev_config, rocketmq_port, snippet
from metaq_broker.operate.config.access import exposure_warning
from metaq_broker.operate.config.configuration import BrokerConfig, load, unguarded_port_warning, with_plugin
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.replication import check_pair
from metaq_broker.operate.control.ctl import add_ctl_command
from metaq_broker.operate.fsck.command import add_fsck_command
from metaq_broker.operate.init_command import add_init_command
from metaq_broker.operate.monitoring.diagnostics import FORMATS, LEVELS, log_to_stderr
from metaq_broker.operate.registration.begin_pair import add_begin_pair_command
from metaq_broker.operate.registration.forget import add_forget_command
from metaq_broker.process import run
from metaq_broker.start_errors import StartFailed
from metaq_broker.text.stats_command import add_stats_command

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
_ROCKETMQ_HELP = f"for RocketMQ's clients; default {ports.ROCKETMQ}, or any free port where that is taken"
_DASHBOARD_PORT_HELP = f"for the dashboard; default {ports.METAQ_DASHBOARD}, or any free port where that is taken"
_ROLE_HELP = "replication, from a properties file: metaslave, samsa or gregor (see docs/replication.md)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 stopped on request, 1 no start, 2 wrong arguments or configuration."""
    options = _parser().parse_args(arguments)
    if "log_level" in options:  # ctl has no log of its own
        log_to_stderr(options.log_level, options.log_format)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except ConfigError as error:
        return _complain(str(error), EXIT_USAGE)
    except StartFailed as error:
        return _complain(str(error), EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="metaq-broker", description="A MetaQ 1.4 message broker.")
    parser.add_argument("--version", action="version", version=f"metaq-broker {metaq.__version__}")
    parser.set_defaults(command=lambda _: _show_usage(parser))
    commands = parser.add_subparsers(metavar="COMMAND")

    start = commands.add_parser("start", help="run a broker from a server.ini")
    start.add_argument("-f", "--file", required=True, type=Path, help="the configuration, in MetaQ's server.ini format")
    start.add_argument("--port", type=_port, help="listen here instead of serverPort (0 = any free port)")
    start.add_argument("-F", dest="plugins", action="append", default=[], metavar="ROLE=FILE", help=_ROLE_HELP)
    start.add_argument("-l", dest="local_zookeeper", action="store_true", help=argparse.SUPPRESS)  # MetaQ's, for tests
    start.set_defaults(command=_start)

    dev = commands.add_parser("dev", help="run a broker for development: no configuration, every topic accepted")
    dev.add_argument("data", nargs="?", metavar="DATA", help="folder for the messages (default: a temporary one)")
    dev.add_argument("--port", type=_port, default=ports.METAQ, help="default %(default)s; 0 = any free port")
    dev.add_argument("--rocketmq-port", type=_port, help=_ROCKETMQ_HELP)
    dev.add_argument("--partitions", type=_partitions, default=1, help="partitions of each topic, default %(default)s")
    dev.add_argument("--dashboard", action="store_true", help="serve pages for a browser, and HTTP access, too")
    dev.add_argument("--dashboard-port", type=_port, metavar="PORT", help=_DASHBOARD_PORT_HELP)
    dev.add_argument("--dashboard-write", action="store_true", help="let the dashboard change something, not only show")
    dev.set_defaults(command=_dev)

    for command in (start, dev):
        command.add_argument("--log-level", choices=LEVELS, default="info", help="default %(default)s")
        command.add_argument("--log-format", choices=FORMATS, default="text", help="default %(default)s")
    add_init_command(commands)
    add_ctl_command(commands)
    add_stats_command(commands)
    add_fsck_command(commands)
    add_forget_command(commands)
    add_begin_pair_command(commands)
    return parser


def _show_usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def _start(options: argparse.Namespace) -> int:
    config = load(options.file)
    for plugin in options.plugins:
        config = with_plugin(config, plugin)
    if options.port is not None:
        config = _with_port(config, options.port)
    for warning in config.warnings:
        print(f"metaq-broker: {warning}", file=sys.stderr)
    if options.local_zookeeper:
        print("metaq-broker: -l: ignored; there is no ZooKeeper in this broker, start one", file=sys.stderr)
    for exposed in (exposure_warning(config.system), unguarded_port_warning(config)):
        if exposed is not None:
            print(f"metaq-broker: {exposed}", file=sys.stderr)
    run(config, file=options.file.absolute())
    return EXIT_OK


def _dev(options: argparse.Namespace) -> int:
    with data_folder(options.data) as folder:
        for_rocketmq, remark = rocketmq_port(options.rocketmq_port, options.port)
        if remark is not None:
            print(f"metaq-broker: {remark}", file=sys.stderr)
        dashboard = None
        if options.dashboard or options.dashboard_port is not None or options.dashboard_write:
            port, remark = dashboard_port(options.dashboard_port)
            dashboard = (port, options.dashboard_write)
            if remark is not None:
                print(f"metaq-broker: {remark}", file=sys.stderr)
        config = dev_config(folder, options.port, options.partitions, for_rocketmq, dashboard)
        run(config, lambda port: print(snippet(config.system.host_name, port), flush=True))
    return EXIT_OK


def _with_port(config: BrokerConfig, port: int) -> BrokerConfig:
    own = Address(config.system.host_name, port)
    check_pair(config.role, own, config.zookeeper.has_address, f"--port {port}")
    return dataclasses.replace(config, system=dataclasses.replace(config.system, server_port=port))


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"port {text!r}: expected 0..65535")
    return int(text)


def _partitions(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"partitions {text!r}: expected 1..1000")
    return int(text)


def _complain(message: str, status: int) -> int:
    print(f"metaq-broker: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
