"""What is logged about brokers that a consumer fetches from."""

from __future__ import annotations

import logging

import pytest

from metaq.client.groups.fetchers import FetchLog
from metaq.errors import BrokerError, ConnectionFailed
from metaq.model import Partition, TopicPartition

REFUSED, BUSY = TopicPartition("t", Partition(0, 0)), TopicPartition("t", Partition(0, 1))
REFUSAL = BrokerError("127.0.0.1:8123", "get t 0", 403, "no")
LOST = ConnectionFailed("127.0.0.1:8123", "get t 0", "the server closed the connection")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "metaq.client.groups.fetchers")
    return caplog


def test_a_refused_partition_beside_a_busy_one_is_said_once(said: pytest.LogCaptureFixture) -> None:
    log = FetchLog("g", 0)
    for number in range(100):
        if number % 2:
            log.failed(REFUSAL, REFUSED)
        else:
            log.answered([REFUSED], [REFUSAL])
        log.answered([BUSY], [b"messages"])
    assert [(one.levelname, str(REFUSAL) in one.getMessage()) for one in said.records] == [("WARNING", True)]
    log.answered([REFUSED], [b"messages"])
    assert said.records[1].getMessage() == "group g, broker 0 answers again"
    log.failed(REFUSAL, REFUSED)
    assert [one.levelname for one in said.records] == ["WARNING", "INFO", "WARNING"]


def test_a_partition_that_is_given_away_is_forgotten(said: pytest.LogCaptureFixture) -> None:
    log = FetchLog("g", 0)
    for _ in range(2):
        log.failed(REFUSAL, REFUSED)
        log.retain(lambda: [BUSY])
    assert [one.levelname for one in said.records] == ["WARNING", "WARNING"], "it is another time"
    log.failed(REFUSAL, BUSY)
    log.failed(LOST)
    log.retain(lambda: [BUSY])
    log.failed(REFUSAL, BUSY)
    log.failed(LOST)
    assert len(said.records) == 4


def test_a_lost_broker_is_said_once_for_all_partitions(said: pytest.LogCaptureFixture) -> None:
    log = FetchLog("g", 0)
    for where in (REFUSED, BUSY):
        log.failed(LOST, where)
    log.answered([BUSY], [b"messages"])
    assert [one.levelname for one in said.records] == ["WARNING", "INFO"]
