"""Fixtures of the tests with two brokers."""

from __future__ import annotations

import pytest
from metaq_broker.replication import config_follower, java_slave, slave
from metaq_broker.text import extensions


@pytest.fixture
def plain_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that announce nothing beyond MetaQ, as a Java broker does."""
    monkeypatch.setattr(extensions, "EXTENSIONS", ())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is tried again soon."""
    monkeypatch.setattr(slave, "RETRY_S", 0.2)
    monkeypatch.setattr(java_slave, "SETTLE_S", 0.02)
    monkeypatch.setattr(config_follower, "ASK_S", 0.02)
    monkeypatch.setattr(config_follower, "RETRY_S", 0.2)
