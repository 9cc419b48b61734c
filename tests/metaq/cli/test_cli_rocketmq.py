"""The command on a RocketMQ cluster, a scripted one: the same words, queues instead of partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from local_servers import broker_thread

from metaq import RocketMQ
from metaq.cli.main import main
from metaq.model import Partition
from metaq.protocols.remoting.acl import Credentials
from metaq.protocols.remoting.headers.administration import UpdateAndCreateTopic
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.testing.ports import free_port
from metaq.testing.rocketmq_server import ScriptedCluster

QUEUE = Partition("broker-a", 0)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(command: Run, rocketmq: str) -> Run:
    return lambda *arguments: command("--cluster", rocketmq, *arguments)


def test_lines_are_sent_and_printed(run: Run, cluster: ScriptedCluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one tea\ntwo scones\n")
    status, out, _ = run("produce", "orders", "-a", "hot", "-p", "broker-a:1", "-v", str(lines))
    assert status == 0
    assert out.startswith("orders/broker-a:1 offset 0 id ")
    assert run("consume", "orders")[1] == "one tea\ntwo scones\n"
    assert run("consume", "orders", "--format", r"%t %p %o %a %v\n", "-n", "1")[1] == (
        "orders broker-a:1 0 hot one tea\n"
    )
    row = json.loads(run("consume", "orders", "--json", "--from", "1", "-p", "broker-a:1")[1])
    assert (row["value"], row["attribute"], row["properties"]["TAGS"]) == ("two scones", "hot", "hot")
    before = len(cluster.broker().requests)
    assert run("consume", "orders", "-a", "cold")[:2] == (0, "")
    pulls = [asked for asked in cluster.broker().requests[before:] if asked.code == PullMessage.CODE]
    assert {asked.ext["subscription"] for asked in pulls} == {"cold"}, "the broker filters"


def test_topics_have_the_rate_of_sends_where_brokers_count_it(command: Run, tmp_path: Path) -> None:
    """Each topic's sum of the last minute, of all brokers; the scripted ones above do not count."""
    with broker_thread(tmp_path, f"[rocketmq]\nenabled=true\nport={(port := free_port())}\n"):
        at = f"rocketmq://127.0.0.1:{port}"
        with RocketMQ(f"127.0.0.1:{port}", namespace="shop") as mq:
            mq.topics.create("empty", 1)
            mq.producer().send_many("orders", [b"one tea"] * 60)
            rates = mq.cluster.topic_rates()
            assert rates["empty"] == 0.0
            assert rates["orders"] is not None
            assert rates["orders"] > 0.5
        rows = {row["topic"]: row for row in map(json.loads, command("-c", at, "topics", "--json")[1].splitlines())}
        assert rows["shop%orders"]["in_per_s"] > 0.5
        assert rows["shop%empty"] == {"topic": "shop%empty", "partitions": 1, "messages": 0, "in_per_s": 0.0}


def test_properties_and_delays_are_sent(run: Run, cluster: ScriptedCluster) -> None:
    assert run("produce", "orders", "-m", "x", "-H", "price=3", "-H", "note=a=b")[0] == 0
    properties = json.loads(run("consume", "orders", "--json")[1])["properties"]
    assert (properties["price"], properties["note"]) == ("3", "a=b")
    status, _, err = run("produce", "orders", "-m", "x", "--delay", "90s")
    assert (status, "does not offer 'timers'" in err) == (1, True)  # a broker of 4.9
    assert run("produce", "orders", "-m", "x", "-H", "price")[::2] == (
        2,
        "metaq: --property price: expected NAME=VALUE\n",
    )
    with pytest.raises(SystemExit):
        run("produce", "orders", "--delay", "soon")


@pytest.mark.parametrize("option", [("-H", "a=1"), ("--delay", "5s")])
def test_metaq_has_neither(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cluster", "127.0.0.1:1", "produce", "orders", "-m", "x", *option]) == 2
    assert "--property and --delay are for RocketMQ" in capsys.readouterr().err


def test_the_cluster_is_shown(run: Run, cluster: ScriptedCluster) -> None:
    cluster.append("orders", QUEUE, [b"a", b"b"], store_ms=1_700_000_000_000)
    assert run("topics")[1] == "topic   partitions  messages  in_per_s\norders           2         2         -\n"
    assert json.loads(run("describe", "orders", "--json")[1].splitlines()[0])["messages"] == 2
    assert "bytes" not in run("describe", "orders")[1]
    assert run("offsets", "orders", "--at", "@1", "--json")[1].splitlines()[0] == (
        '{"partition": "broker-a:0", "offset": 0}'
    )
    assert json.loads(run("lag", "billing", "orders", "--json")[1].splitlines()[0])["messages_behind"] == 2
    assert str(cluster.broker().address()) in run("brokers")[1]


def test_what_cannot_be_done_is_said(run: Run) -> None:
    status, _, err = run("lag", "billing")  # this server tells as little as a proxy
    assert (status, err.startswith("metaq: lag of group 'billing': name its topics; server ")) == (2, True)
    status, _, err = run("groups")
    assert (status, "refused the list of groups" in err) == (1, True)
    status, _, err = run("consume", "nothing")
    assert (status, "nothing" in err) == (1, True)
    status, _, err = run("consume", "orders", "-p", "broker-a:5")
    assert (status, err) == (2, "metaq: topic 'orders' has no queue broker-a:5; it has broker-a:0, broker-a:1\n")


def test_what_an_account_needs_depends_on_the_request(cluster: ScriptedCluster, run: Run, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one tea\n")
    assert run("produce", "orders", str(lines))[0] == 0
    cluster.broker().denied = frozenset({UpdateAndCreateTopic.CODE, PullMessage.CODE})
    status, _, err = run("create", "another")
    assert (status, err.strip().endswith("check that the account has the permissions of an administrator")) == (1, True)
    status, _, err = run("consume", "orders")
    assert (status, "check that the account has SUB and GET on the topic and SUB on the group" in err) == (1, True)


def test_keys_of_an_account_come_from_the_profile(
    cluster: ScriptedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.broker().credentials = Credentials("reader", "secret-1")
    servers = ",".join(map(str, cluster.name_servers))
    config = tmp_path / "config.ini"
    config.write_text(
        f"[good]\ncluster = rocketmq://{servers}\naccess_key = reader\nsecret_key = secret-1\n"
        f"[half]\ncluster = rocketmq://{servers}\naccess_key = reader\n"
        "[mixed]\ncluster = 127.0.0.1:1\naccess_key = reader\nsecret_key = secret-1\n"
    )
    monkeypatch.setenv("METAQ_CONFIG", str(config))
    monkeypatch.delenv("METAQ_CLUSTER", raising=False)
    assert main(["--profile", "good", "describe", "orders"]) == 0
    assert main(["--profile", "half", "describe", "orders"]) == 2
    assert main(["--profile", "mixed", "topics"]) == 2
    err = capsys.readouterr().err
    assert "access_key and secret_key: expected both or none" in err
    assert "access_key: only for clusters that begin with rocketmq://, not for '127.0.0.1:1'" in err
    assert "secret-1" not in err
