"""``metaq-broker init``: writes a commented configuration, made from the rows of the keys."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from metaq_broker.dev import checked_folder
from metaq_broker.operate.config.http import HttpConfig
from metaq_broker.operate.config.keys import WITHOUT_EFFECT, Key, keys_of
from metaq_broker.operate.config.replication import GregorConfig, PairConfig, SamsaConfig, SlaveConfig
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.operate.config.sections import SystemConfig, ZooKeeperConfig

NAME: Final = "server.ini"
COLUMNS_MAX: Final = 110

_HEAD: Final = """\
# The configuration of a MetaQ broker: metaq-broker start -f server.ini
#
# A line that begins with "#" and a key shows the default; remove the "#" to change it. Numbers may be products
# (1024*1024*64). SIGHUP reloads the topics. Wrong keys and values are refused at the start, with what is allowed.
# docs/configuration.md of the project has more about the keys.
"""
_TOPICS: Final = """\
# At least one topic. "*" stands for any characters: this accepts every topic. A section for a topic may repeat
# numPartitions, deletePolicy, deleteWhen, dataPath, stat, unflushThreshold, unflushInterval, accept... and allow....
[topic=*]

#[topic=orders]
#numPartitions=16
#deletePolicy=delete,24
"""
_OTHERS: Final = (
    ("zookeeper", ZooKeeperConfig, "Without zk.zkConnect there is no ZooKeeper: clients name the brokers by address."),
    ("rocketmq", RocketmqConfig, "RocketMQ's clients, served beside MetaQ's."),
    ("http", HttpConfig, "HTTP access, in a process of its own: needs metaq-spark[console]."),
    ("slave", SlaveConfig, "A second broker with the same messages; at most one of these four sections."),
    ("samsa", SamsaConfig, ""),
    ("gregor", GregorConfig, ""),
    ("pair", PairConfig, "A pair that elects its master: both members have this section, each names the other."),
)


def add_init_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    init = commands.add_parser("init", help="write a commented server.ini to begin with")
    init.add_argument("folder", nargs="?", default=Path(), type=Path, metavar="FOLDER", help="default: this folder")
    init.set_defaults(command=_init)


def template(data: Path) -> str:
    """Return the text of the file, for messages in ``data``.

    Raises:
        ConfigError: The folder's name cannot be written into a configuration.
    """
    lines = [_HEAD, "[system]", *_lines(SystemConfig), "", _TOPICS]
    for name, section, about in _OTHERS:
        lines += [f"# {about}"] if about else []
        lines += [f"#[{name}]", *_lines(section), ""]
    return "\n".join(lines).replace("@DATA@", str(checked_folder(data)))


def _lines(section: type) -> Iterator[str]:
    for key in keys_of(section):
        if key.kind != WITHOUT_EFFECT:
            yield from textwrap.wrap(_comment(key), COLUMNS_MAX, initial_indent="# ", subsequent_indent="# ")
            yield f"#{key.name}={key.default_text}" if key.sample is None else f"{key.name}={key.sample}"


def _comment(key: Key) -> str:
    """Return the documentation of a key without Markdown."""
    shown = "" if key.default_text or not key.shown else f" (default: {key.shown})"
    doc = re.sub(r"\.? See \[[^\]]*\]\([^)]*\)", "", key.doc) + shown
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", doc).replace("`", "")


def _init(options: argparse.Namespace) -> int:
    folder: Path = options.folder.expanduser().absolute()
    path = folder / NAME
    text = template(folder / "data")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"metaq-broker: {path} exists already; nothing is changed", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"metaq-broker: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{path} is written. Look through it, then start the broker:\n\nmetaq-broker start -f {path}")
    return 0
