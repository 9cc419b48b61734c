"""``metaq-broker init``: the file that it writes has every key, with the defaults, and starts a broker as it is."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import StartBroker, run_broker_command
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.keys import WITHOUT_EFFECT, keys_of
from metaq_broker.operate.config.replication import GregorConfig, PairConfig, SamsaConfig, SlaveConfig
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.operate.config.sections import SYSTEM_KEYS, SystemConfig, ZooKeeperConfig
from metaq_broker.operate.init_command import template

OWN_DEFAULTS = {"disk_free_bytes_min", "disk_free_bytes_resume"}
"""Theirs depend on the disk."""


def init(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_broker_command("init", *arguments)


def with_every_key(text: str) -> str:
    """The file with all keys in force, except those of other sections."""
    return re.sub(r"^#(?=\w+=.)", "", text.partition("[topic=*]")[0], flags=re.MULTILINE) + "[topic=*]\n"


def test_the_keys_that_are_shown_have_their_defaults() -> None:
    text = template(Path("/data"))
    plain, full = parse(text.encode()), parse(with_every_key(text).encode())
    assert plain.warnings == full.warnings == ()
    for key in SYSTEM_KEYS:
        if key.attribute not in OWN_DEFAULTS:
            assert getattr(full.system, key.attribute) == getattr(plain.system, key.attribute), key.name
    assert plain.system.data_path == "/data"


@pytest.mark.parametrize(
    "section", [SystemConfig, ZooKeeperConfig, RocketmqConfig, SlaveConfig, SamsaConfig, GregorConfig, PairConfig]
)
def test_every_key_is_shown(section: type) -> None:
    shown = set(re.findall(r"^#?([\w.]+)=", template(Path("/data")), re.MULTILINE))
    assert {key.name for key in keys_of(section) if key.kind != WITHOUT_EFFECT} <= shown


@pytest.mark.process
def test_a_broker_starts_from_it(tmp_path: Path, start_broker: StartBroker) -> None:
    done = init(tmp_path / "new" / "broker")
    file = tmp_path / "new" / "broker" / "server.ini"
    assert (done.returncode, done.stderr) == (0, "")
    assert f"metaq-broker start -f {file}\n" in done.stdout
    broker = start_broker("start", "-f", file, "--port", "0")
    assert broker.data == file.parent / "data"
    with closing(broker.client()) as client:
        assert client.result(b"put orders 3 1 0 7\r\nx")[0] == 200


@pytest.mark.process
def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "server.ini").write_text("mine")
    done = init(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"metaq-broker: {tmp_path}/server.ini exists already; nothing is changed\n"
    assert (tmp_path / "server.ini").read_text() == "mine"


@pytest.mark.process
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = init(tmp_path / "file" / "folder")
    assert done.returncode == 1
    assert done.stderr == f"metaq-broker: {tmp_path}/file/folder/server.ini cannot be written: Not a directory\n"
