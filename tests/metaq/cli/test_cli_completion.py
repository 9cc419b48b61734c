"""``metaq completion``: what bash, zsh and fish offer, asked of the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.cli.completion import words_of
from metaq.cli.main import main, whole_parser
from metaq.testing.rocketmq_server import ScriptedCluster

pytestmark = [pytest.mark.process, pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")]

ASK = r"""
source "$1"; shift
while read -r -a COMP_WORDS; do
    [[ ${COMP_WORDS[-1]} == "''" ]] && COMP_WORDS[-1]=
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _metaq
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "metaq.bash"
    path.write_text(capsys.readouterr().out)
    return path


def ask(script: Path, lines: list[str], path: str | None = None) -> list[list[str]]:
    """What bash offers behind each line, split into words as readline does; ``''`` stands for a word not begun."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else os.environ
    ran = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", script], env=environment, input="\n".join(lines) + "\n", text=True,
        capture_output=True, timeout=30, cwd=script.parent,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    return [line.split() for line in ran.stdout.split("\n")[:-1]]


def test_every_command_and_option_of_the_parser_is_offered(script: Path) -> None:
    words = list(words_of(whole_parser()))
    paths = [" ".join(("metaq", *one.path)) for one in words]
    offered = ask(script, [f"{path} -" for path in paths])
    for one, options in zip(words, offered, strict=True):
        assert sorted(options) == sorted(name for option in one.options for name in option.names), one.path
    nested = [(one, path) for one, path in zip(words, paths, strict=True) if one.commands]
    for (one, _), commands in zip(nested, ask(script, [f"{path} ''" for _, path in nested]), strict=True):
        assert commands == list(one.commands)
    assert {"produce", "consume", "stats", "doctor", "completion"} <= set(words[0].commands)


def test_values(script: Path) -> None:
    (script.parent / "lines.txt").touch()
    offered = ask(
        script,
        [
            "metaq con",
            "metaq --cluster zk : //zk1 : 2181,zk2 : 2181/meta pro",
            "metaq -c a : 1 dlq re",
            "metaq completion z",
            "metaq produce orders l",
            "metaq produce orders --key-separator x l",
            "metaq produce --key-separator = x orders l",
            "metaq consume orders --partition ''",
        ],
    )
    assert offered == [["consume"], ["produce"], ["resend"], ["zsh"], *[["lines.txt"]] * 3, []]


def folder_with_program(folder: Path) -> Path:
    """Make ``bin`` with the command itself."""
    program = folder / "bin" / "metaq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m metaq.cli.main "$@"\n')
    program.chmod(0o755)
    return program.parent


def test_topics_come_from_the_cluster_that_is_named(script: Path, tmp_path: Path) -> None:
    folder = folder_with_program(tmp_path)
    with ScriptedCluster() as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("others")
        cluster.create_topic("payments")
        server = str(cluster.name_servers[0]).replace(":", " : ")
        line = f"metaq --cluster rocketmq : //{server} consume o"
        assert ask(script, [line], str(folder)) == [["orders", "others"]]


LINES = [
    ("metaq con", "consume"),
    ("metaq dlq re", "resend"),
    ("metaq produce orders l", "lines.txt"),
    ("metaq lag --checkpoint l", "lines.txt"),
    ("metaq consume orders --part", "--partition"),
    ("metaq completion z", "zsh"),
    ("metaq --cluster zk://zk1:2181,zk2:2181/meta pro", "produce"),
    ("metaq -c {cluster} consume pay", "payments"),
]
"""What is typed, and the one word that a shell makes of the last one."""


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[list[tuple[str, str]]]:
    """``LINES``, with a cluster that has topics, a file, and the command itself below ``bin``."""
    (tmp_path / "lines.txt").touch()
    folder_with_program(tmp_path)
    with ScriptedCluster() as cluster:
        cluster.create_topic("payments")
        cluster.create_topic("orders")
        yield [(line.format(cluster=f"rocketmq://{cluster.name_servers[0]}"), word) for line, word in LINES]


def shell_environment(folder: Path) -> dict[str, str]:
    """Without the files of whoever runs the tests."""
    own = {"HOME": str(folder), "ZDOTDIR": str(folder), "XDG_CONFIG_HOME": str(folder), "TERM": "dumb"}
    return {**os.environ, **own, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes(typed: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = [capsys.readouterr().out, *(f'echo "=" (complete -C "{line}" | string split -f1 \\t)' for line, _ in typed)]
    lines.append('complete -C "metaq consume orders --from " | count')
    ran = subprocess.run(
        ["fish", "--no-config"], input="\n".join(lines), env=shell_environment(tmp_path), cwd=tmp_path, text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert (ran.stdout.splitlines(), ran.stderr) == ([*(f"= {word}" for _, word in typed), "0"], "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_completes(typed: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real zsh at a terminal: a line is typed with a tab behind it, and what appears is read."""
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "metaq.zsh").write_text(capsys.readouterr().out)
    master, terminal = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], env=shell_environment(tmp_path), cwd=tmp_path, start_new_session=True,
        stdin=terminal, stdout=terminal, stderr=terminal,
    ) as zsh:  # fmt: skip
        os.close(terminal)
        try:
            os.write(master, b"PS1=; stty -echo columns 200; source metaq.zsh; echo rea''dy\n")
            until(master, "ready\r\n")
            for line, word in typed:
                os.write(master, f"{line}\t".encode())
                shown = until(master, f"{line.rpartition(' ')[0]} {word}")
                assert "not found" not in shown
                os.write(master, b"\x15")  # away with the line
        finally:
            zsh.kill()
            os.close(master)


def until(terminal: int, text: str) -> str:
    """Return what a terminal shows up to ``text``."""
    shown, deadline_s = "", time.monotonic() + 30
    while text not in shown:
        left_s = deadline_s - time.monotonic()
        assert left_s > 0, f"{text!r} did not appear in {shown!r}"
        if select.select([terminal], [], [], left_s)[0]:
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
    return shown


def test_a_cluster_that_is_away_has_no_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", "127.0.0.1:1", "completion", "--topics"]) == 1
    assert main(["-c", "nonsense", "completion", "--topics"]) == 1
    assert capsys.readouterr() == ("", "")
    assert main(["completion"]) == 2
    assert "expected a shell, one of bash, fish, zsh" in capsys.readouterr().err


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_the_script_is_one_of_its_shell(
    shell: str, check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "doctor" in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "script").write_text(text)
    ran = subprocess.run([shell, check, tmp_path / "script"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
