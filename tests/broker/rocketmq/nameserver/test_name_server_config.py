"""Properties files, the keys of the name server, and what its command says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.files.files import Files
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.properties import read_properties
from metaq_broker.rocketmq.nameserver.cli import main
from metaq_broker.rocketmq.nameserver.config import CHANGEABLE, IGNORED_KEYS, KEYS, load, to_text
from metaq_broker.rocketmq.nameserver.settings import LiveSettings
from metaq_broker.testing import FaultyFiles


class TestKeys:
    def test_defaults_are_those_of_rocketmq(self) -> None:
        config, warnings = load("", "file")
        assert (config.listen_port, config.idle_timeout_s, config.order_messages) == (9876, 120, False)
        assert config.kv_config_path == str(Path.home() / "namesrv" / "kvConfig.json")
        assert warnings == []

    def test_the_printed_configuration_is_one(self) -> None:
        config, _ = load(
            "listenPort=1\nclusterTest=true\ntls.server.need.client.auth=none\nkvConfigPath=/a b\\\\c\n", "f"
        )
        assert load(to_text(config), "f") == (config, [])
        assert set(read_properties(to_text(config))) == {key.name for key in KEYS}

    def test_keys_that_mean_nothing_here_and_unknown_ones_are_warned_of(self) -> None:
        _, warnings = load("serverWorkerThreads=8\nnonsense=1\n", "/etc/namesrv.properties")
        assert warnings == [
            "/etc/namesrv.properties: serverWorkerThreads is ignored: there is nothing like it here",
            "/etc/namesrv.properties: nonsense is unknown",
        ]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("listenPort=99999", "f listenPort: value '99999'; expected a number from 0 to 65535"),
            ("listenPort=abc", "expected a number"),
            ("listenPort=\\uabc", r"f: '.uabc': .u must be followed by four hex digits"),
            ("orderMessageEnable=yes", "f orderMessageEnable: value 'yes'; expected true or false"),
            ("tls.server.mode=maybe", "expected disabled, permissive, enforcing"),
            ("tls.server.mode=enforcing", "enforcing needs tls.server.certPath"),
            ("tls.server.certPath=/x.pem", "it needs tls.server.keyPath"),
            ("tls.server.need.client.auth=require", "it needs tls.server.trustCertPath"),
        ],
    )
    def test_wrong_values(self, line: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load(line, "f")

    def test_no_key_is_two_things(self) -> None:
        names = [key.name for key in KEYS]
        assert len(set(names)) == len(names)
        assert IGNORED_KEYS.isdisjoint(names)
        assert set(names) >= CHANGEABLE


class TestChanges:
    @staticmethod
    def changed(folder: Path, body: str, files: Files | None = None) -> tuple[str | None, LiveSettings]:
        async def run() -> tuple[str | None, LiveSettings]:
            settings = LiveSettings(load("", "f")[0], files or Files(), folder / "namesrv.properties")
            return await settings.change(body), settings

        return asyncio.run(run())

    def test_a_change_is_kept_and_shown(self, tmp_path: Path) -> None:
        refusal, settings = self.changed(tmp_path, "orderMessageEnable=true\n")
        assert refusal is None
        assert settings.order_messages
        assert "orderMessageEnable=true" in settings.to_text()
        assert load((tmp_path / "namesrv.properties").read_text(), "f")[0].order_messages

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("kvConfigPath=/etc/passwd", "Can not update config path"),
            ("configStorePath=/etc/passwd\norderMessageEnable=true", "Can not update config path"),
            ("listenPort=1\ntls.server.mode=disabled", "listenPort, tls.server.mode: can only be changed in the file"),
            ("orderMessageEnable=perhaps", "expected true or false"),
            ("orderMessageEnable=\\u12", "must be followed by four hex digits"),
            ("x" * 70_000, "a change of 70000 characters; at most 65536 are allowed"),
        ],
    )
    def test_refusals_change_nothing(self, tmp_path: Path, body: str, message: str) -> None:
        refusal, settings = self.changed(tmp_path, body)
        assert refusal is not None
        assert message in refusal
        assert not settings.order_messages
        assert list(tmp_path.iterdir()) == []

    def test_unknown_keys_and_no_change_write_nothing(self, tmp_path: Path) -> None:
        assert self.changed(tmp_path, "nonsense=1\norderMessageEnable=false\n")[0] is None
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("seed", range(8))
    def test_a_change_in_a_new_folder_outlives_a_power_cut(self, tmp_path: Path, seed: int) -> None:
        files = FaultyFiles(tmp_path)
        assert self.changed(tmp_path / "rocketmq", "orderMessageEnable=true\n", files)[0] is None
        files.crash(Random(seed))
        assert load((tmp_path / "rocketmq" / "namesrv.properties").read_text(), "f")[0].order_messages


class TestCommand:
    def test_p_prints_the_configuration(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "namesrv.properties"
        file.write_text("listenPort=4711\nnonsense=1\n")
        assert main(["start", "-c", str(file), "-p"]) == 0
        out, err = capsys.readouterr()
        assert "listenPort=4711\n" in out
        assert err == f"metaq-namesrv: {file}: nonsense is unknown\n"

    @pytest.mark.parametrize(
        ("text", "message"), [("listenPort=x\n", "expected a number"), (None, "cannot be read: No such file")]
    )
    def test_wrong_configuration(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
    ) -> None:
        file = tmp_path / "namesrv.properties"
        if text is not None:
            file.write_text(text)
        assert main(["start", "-c", str(file)]) == 2
        assert message in capsys.readouterr().err

    def test_no_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 2
        assert "metaq-namesrv" in capsys.readouterr().err
