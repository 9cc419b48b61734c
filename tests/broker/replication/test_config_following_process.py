"""Two real brokers: a topic that the master's operator adds is on the slave, in its file, copied and served."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import StartBroker, run_broker_command, system_section, wait_until

from metaq.protocols.text.commands import Value

pytestmark = pytest.mark.process


def ini(folder: Path, name: str, rest: str) -> Path:
    """Write the configuration of a broker; return its path."""
    file = folder / f"{name}.ini"
    file.write_text(system_section(3, 2, maxSegmentSize=4096, dataPath=folder / name) + rest)
    return file


def ctl(data: Path, *arguments: str) -> str:
    """Run a command of the operator's; return what it said."""
    done = run_broker_command("ctl", "--data", data, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_topic_of_the_master_comes_to_the_slave(start_broker: StartBroker, tmp_path: Path) -> None:
    master_ini = ini(tmp_path, "m", "[topic=t]\n")
    master = start_broker("start", "-f", master_ini)
    slave_ini = ini(tmp_path, "s", "; of this machine\n[topic=t]\ndeletePolicy=delete,24\n")
    plugin = tmp_path / "async_slave.properties"
    plugin.write_text(f"slaveId=0\nmaster={master.address}\nslaveMaxDelayInMills=20\nautoSyncMasterConfig=true\n")
    slave = start_broker("start", "-f", slave_ini, f"-Fmetaslave={plugin}")
    wait_until(lambda: "acceptPublish=true" in slave_ini.read_text(), "the first look at the master")
    master_ini.write_text(master_ini.read_text() + "[topic=fresh]\nnumPartitions=3\n")
    assert "new topic fresh" in ctl(tmp_path / "m", "reload")
    wait_until(lambda: "[topic=fresh]\nnumPartitions=3\n" in slave_ini.read_text(), "the slave's file")
    text = slave_ini.read_text()
    assert "; of this machine\n[topic=t]\ndeletePolicy=delete,24\n" in text
    assert "fresh" not in (tmp_path / "s.ini.bak").read_text()
    reader, writer = slave.client(), master.client()
    wait_until(lambda: reader.result(b"stats config 1\r\n")[1] == text, "the slave to have reloaded")
    code, words = writer.result(b"put fresh 2 5 0 -1 1\r\nhello")
    assert code == 200, words
    original = writer.value(b"get fresh g 2 0 1024 1\r\n")
    wait_until(lambda: reader.ask(b"get fresh g 2 0 1024 1\r\n") == Value(original, 1), "the message on the slave")
    assert "NOT FOLLOWED" not in ctl(tmp_path / "s", "status")
    master_ini.write_text(master_ini.read_text().replace("brokerId=3", "brokerId=4"))
    ctl(tmp_path / "m", "reload")
    wait_until(lambda: "NOT FOLLOWED" in ctl(tmp_path / "s", "status"), "the slave to say that it cannot follow")
    assert "[system] brokerId: value 4; expected this slave's, 3" in ctl(tmp_path / "s", "status")
    assert slave_ini.read_text() == text
    assert slave.stop() == 0
