"""The function for ``foreachBatch``: what it hands to Spark, and what it refuses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from local_servers import broker_thread
from pyspark.sql.types import StringType, StructField, StructType

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.testing.ports import free_port
from metaq_spark.errors import OptionError
from metaq_spark.foreach_batch import PATIENCE, ExactlyOnceBatches


class Rows:
    """A DataFrame that remembers its write."""

    schema = StructType([StructField("value", StringType())])

    def __init__(self) -> None:
        self.saved: list[tuple[str, str, dict[str, Any]]] = []

    @property
    def write(self) -> Rows:
        return self

    def format(self, name: str) -> Rows:
        self._format = name
        return self

    def mode(self, name: str) -> Rows:
        self._mode = name
        return self

    def options(self, **options: Any) -> Rows:
        self._options = options
        return self

    def save(self) -> None:
        self.saved.append((self._format, self._mode, self._options))


def saved(batch_id: int, brokers: object = "b:1", **options: str) -> dict[str, Any]:
    rows: Any = Rows()
    ExactlyOnceBatches("metaq", {"brokers": str(brokers)}, topic="t", txnAppId="app", **options)(rows, batch_id)
    ((name, mode, given),) = rows.saved
    assert (name, mode) == ("metaq", "append")
    return dict(given)


def test_every_batch_is_a_version_and_waits_for_brokers() -> None:
    given = {"brokers": "b:1", "topic": "t", "txnAppId": "app", "delivery": "exactly_once"}
    assert saved(7) == given | {"txnVersion": "7", "brokerWaitMs": PATIENCE}
    for batch_id in (0, 7):
        assert saved(batch_id, BrokerWaitMs="5") == given | {"txnVersion": str(batch_id), "BrokerWaitMs": "5"}


def test_batch_0_looks_for_its_brokers_without_waiting_and_then_waits(tmp_path: Path) -> None:
    wrong = Address("127.0.0.1", free_port())
    with pytest.raises(MetaqError, match=str(wrong)):
        saved(0, wrong, retries="0")
    with broker_thread(tmp_path) as address:
        assert saved(0, address)["brokerWaitMs"] == PATIENCE


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "kafka",
            {"txnAppId": "a"},
            "option format: 'kafka' is not a format of this package; there are metaq, rocketmq",
        ),
        ("metaq", {}, "option txnAppId: it is required: the name under which the brokers remember the last batch"),
        ("metaq", {"txnappid": "a", "TxnVersion": "1"}, "option TxnVersion: the number of the micro-batch is used"),
        ("metaq", {"txnAppId": "a", "delivery": "at_least_once"}, "option delivery: it is exactly_once here"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        ExactlyOnceBatches(name, options)
    assert str(caught.value).startswith(words)


def test_it_can_be_sent_to_another_process() -> None:
    write = pickle.loads(pickle.dumps(ExactlyOnceBatches("rocketmq", txnAppId="app")))
    assert repr(write) == "ExactlyOnceBatches('rocketmq', txnAppId='app')"
