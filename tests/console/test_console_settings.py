"""Settings that are wrong are refused with one sentence, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_console.cli import main
from metaq_console.settings import ConsoleSettings, SettingsError


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"port": 70000}, "port 70000: expected 0..65535"),
        ({"token": "short"}, "token of 5 characters: expected 16 or more"),
        (
            {"host": "0.0.0.0"},
            "host '0.0.0.0': other machines reach it, so a token is required; give one, or 127.0.0.1",
        ),
        ({"tls_key_file": "key.pem"}, "a TLS key without a certificate: give both, or neither"),
        ({"proxies": ("proxy",)}, "proxy 'proxy': expected an address, or a network such as 10.0.0.0/8"),
        ({"question_s": 0.0}, "question 0 s: expected 0.1..3600"),
    ],
)
def test_wrong_settings(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError) as failed:
        ConsoleSettings(**values)  # type: ignore[arg-type]
    assert str(failed.value) == sentence


def test_a_host_for_other_machines_with_a_token_is_allowed() -> None:
    assert ConsoleSettings(host="0.0.0.0", token="a-secret-of-some-length").host == "0.0.0.0"


def test_a_missing_token_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--token-file", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"metaq console: token file {tmp_path / 'none'}: No such file or directory\n"
