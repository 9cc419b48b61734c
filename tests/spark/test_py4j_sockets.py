"""Sockets that py4j leaves to the garbage collector do not fail the test that happens to run then."""

from __future__ import annotations

import gc
import socket
import sys

import pytest
from py4j_sockets import Py4jSocket
from pyspark.sql import SparkSession


def test_only_those_of_py4j_may_be_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = list[str]()
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(type(report.exc_value).__name__))
    Py4jSocket()
    gc.collect()
    assert reported == []
    socket.socket()
    gc.collect()
    assert reported == ["ResourceWarning"]


@pytest.mark.spark
def test_a_session_has_them(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
    connection = spark._jvm._gateway_client.get_thread_connection()
    assert type(connection.socket) is Py4jSocket
