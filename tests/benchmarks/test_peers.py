"""The benchmarks beside other products: what they do without them, and what they take."""

from __future__ import annotations

import os
from pathlib import Path

import java_peer
import kafka_peer
import pytest
import rocketmq_broker_peer
import rocketmq_peer

from peers import kafka
from peers.kafka import PROPERTIES, Artifact, NoJars, cluster_id, fetch, local_kafka


@pytest.mark.parametrize("program", [java_peer, kafka_peer, rocketmq_peer, rocketmq_broker_peer])
def test_without_a_peer_it_says_so_and_measures_nothing(
    program: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    assert program.main(["--json", str(file)]) == 0  # type: ignore[attr-defined]
    assert "nothing is measured without --" in capsys.readouterr().out
    assert not file.exists()


def test_options() -> None:
    java = java_peer.options(["--java-broker", "127.0.0.1:8123", "--topic", "orders", "--runs", "2"])
    assert (java.java_broker, java.topic, java.runs) == ("127.0.0.1:8123", "orders", 2)
    rocketmq = rocketmq_peer.options(["--rocketmq", "5.5.0", "--kafka", "local", "--only", "sink"])
    assert (rocketmq.rocketmq, rocketmq.kafka, rocketmq.only) == ("5.5.0", "local", "sink")
    kafka = kafka_peer.options(["--kafka", "local", "--scale", "0.5"])
    assert (kafka.kafka, kafka.scale, Artifact.parse(kafka.connector).name) == (
        "local",
        0.5,
        "spark-sql-kafka-0-10_2.13",
    )


def test_kafka_listens_here_alone() -> None:
    text = PROPERTIES.format(port=1, controller=2, data="d", partitions=2, more="")
    listeners = [line for line in text.splitlines() if line.startswith("listeners=")]
    assert listeners == ["listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"]


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    for first in range(256):
        text = cluster_id(bytes([first, *range(15)]))
        assert not text.startswith("-"), first
        assert len(text) == 22, first


def test_what_kafka_prints_is_shown_when_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho no such option: -x >&2\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SystemExit, match=r"was not formatted, exit status 3:\nno such option: -x"):
        local_kafka([], 1).__enter__()
    java.write_text("#!/bin/sh\n[ $5 = kafka.Kafka ] || exit 0\necho cannot listen\nexit 4\n")
    with pytest.raises(SystemExit, match=r"ended with status 4; the end of its log:\ncannot listen"):
        local_kafka([], 1).__enter__()


@pytest.mark.parametrize("text", ["", "a:b", "a::c", "a:b:c:d"])
def test_what_names_no_artifact(text: str) -> None:
    with pytest.raises(ValueError, match="expected group:name:version"):
        Artifact.parse(text)


def test_jars_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def retrieve(artifact: Artifact, folder: Path, ivy_cache: Path) -> None:
        fetched.append(str(artifact))
        folder.mkdir()
        (folder / f"{artifact.name}.jar").touch()

    monkeypatch.setattr(kafka, "_retrieve", retrieve)
    wanted = [Artifact.parse("g:one:1"), Artifact.parse("g:two:2")]
    assert [[jar.name for jar in fetch(wanted, tmp_path)] for _ in range(2)] == [["one.jar", "two.jar"]] * 2
    assert fetched == ["g:one:1", "g:two:2"]


def test_jars_that_are_not_to_be_had_are_an_error_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(artifact: Artifact, folder: Path, ivy_cache: Path) -> None:
        raise NoJars(f"{artifact}: not found")

    monkeypatch.setattr(kafka, "_retrieve", refuse)
    for _ in range(2):
        with pytest.raises(NoJars, match="g:one:1: not found"):
            fetch([Artifact.parse("g:one:1")], tmp_path)


def test_answers_are_counted_and_a_refusal_ends_it() -> None:
    two = b"result 200 5 7\r\n1 0 0result 200 5 7\r\n2 0 9"
    assert java_peer.answers(bytearray(two), len(two)) == 2
    with pytest.raises(AssertionError, match="refused"):
        java_peer.answers(bytearray(b"result 500 3 7\r\nbad"), 19)
    with pytest.raises(AssertionError, match="closed"):
        java_peer.answers(bytearray(4), 0)
