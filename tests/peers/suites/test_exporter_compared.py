"""What the exporter exposes of two brokers, read and compared."""

from __future__ import annotations

from peers.suites.exporter import compared, metrics_of
from peers.suites.results import Outcome

ORIGINAL = """\
# HELP rocketmq_producer_offset TopicOffset
# TYPE rocketmq_producer_offset gauge
rocketmq_producer_offset{cluster="DefaultCluster",broker="broker-a",topic="sweep",} 4.0
rocketmq_producer_offset{cluster="DefaultCluster",broker="broker-a",topic="SYSTEM",} 7.0
rocketmq_producer_tps{brokerIP="127.0.0.1:20911",client="192.0.2.2@11#222",since="1795788497489",topic="sweep",} 0.5
"""


def test_series_are_those_of_the_messages_without_what_differs_from_run_to_run() -> None:
    assert metrics_of(ORIGINAL) == {
        "rocketmq_producer_offset": {"broker=broker-a,cluster=DefaultCluster,topic=sweep": 4.0},
        "rocketmq_producer_tps": {"brokerIP=...,client=...,since=...,topic=sweep": 0.5},
    }


def test_a_metric_fails_if_its_series_or_a_steady_value_differ() -> None:
    original = metrics_of(ORIGINAL)
    same = metrics_of(ORIGINAL.replace("20911", "20912").replace("@11#222", "@12#333").replace("0.5", "0.25"))
    assert {each.outcome for each in compared(original, same).values()} == {Outcome.PASSED}
    other = compared(original, metrics_of(ORIGINAL.replace("} 4.0", "} 5.0")))
    assert other["rocketmq_producer_offset"].outcome is Outcome.FAILED
    assert "4.0" in other["rocketmq_producer_offset"].why
    without = compared(original, metrics_of("rocketmq_more 1.0\n"))
    assert {each.outcome for each in without.values()} == {Outcome.FAILED}
    assert set(without) == {"rocketmq_producer_offset", "rocketmq_producer_tps", "rocketmq_more"}
