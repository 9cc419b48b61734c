"""The folder of the compiled suites, and what is said where it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.maven import Unavailable
from peers.suites.__main__ import main
from peers.suites.folder import compiled_suite


def make(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()


def test_the_classes_of_a_suite_come_before_its_jars_and_junit_is_left_out(tmp_path: Path) -> None:
    make(tmp_path / "s", "test-classes/org/x/OneTest.class", "test-classes/org/x/OneTest$1.class")
    make(tmp_path / "s", "test-classes/TwoIT.class", "test-classes/org/x/Help.class")
    make(tmp_path / "s", "lib/client.jar", "lib/junit-4.4.jar", "lib/hamcrest-core-1.3.jar")
    suite = compiled_suite(tmp_path, "s")
    assert [str(Path(each).relative_to(tmp_path / "s")) for each in suite.class_path] == [
        "classes",
        "test-classes",
        "lib/client.jar",
    ]
    assert list(suite.test_classes()) == ["TwoIT", "org.x.OneTest"]


def test_a_suite_that_is_not_compiled_is_named(tmp_path: Path) -> None:
    make(tmp_path / "s", "lib/client.jar")
    with pytest.raises(Unavailable, match=r"the suite s: .*/s/test-classes is missing or empty; see docs/testing.md"):
        compiled_suite(tmp_path, "s")


def test_without_a_folder_one_sentence_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUITES", raising=False)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "peers.suites: SUITES names no folder; it has the compiled suites, see docs/testing.md\n"
    )
    assert main(["--suites", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == (
        f"peers.suites: {tmp_path}/none is no folder; it has the compiled suites, see docs/testing.md\n"
    )


def test_an_unknown_suite_is_refused_with_the_names_of_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kafka"]) == 2
    said = "e2e-v4, rocketmq-test, metaq-integration, mqadmin-4.9.7, mqadmin-5.5.0"
    said += ", exporter, metaq-2.1, gregor"
    assert capsys.readouterr().err == f"peers.suites: kafka: suites are {said}\n"
