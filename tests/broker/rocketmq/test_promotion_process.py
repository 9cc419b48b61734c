"""A master is killed and its slave promoted: what RocketMQ's clients left at the one goes on at the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fix_broker import RunningBroker, launch, run_broker_command, system_section, wait_until
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_records import decode_state
from request_replay import Asker

from metaq.client.partitioners import fixed
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import MetaqError
from metaq.formats.rocketmq.message_ids import OffsetMessageId
from metaq.model import Address
from metaq.protocols.remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroups
from metaq.protocols.remoting.bodies.registration import TopicConfigs
from metaq.protocols.remoting.headers.administration import (
    GetAllSubscriptionGroupConfig,
    GetAllTopicConfig,
    UpdateAndCreateSubscriptionGroup,
)
from metaq.protocols.remoting.headers.pulls import ViewMessageById
from metaq.testing.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.slow]

OWN_KEYS = ("copied-from", "state/count")


def configured(folder: Path, name: str, port: int, for_rocketmq: int, role: str = "") -> Path:
    """Write the configuration of a broker; return its path."""
    file = folder / f"{name}.ini"
    system = system_section(3, 2, serverPort=port, hostName="127.0.0.1", dataPath=folder / name)
    keys = "messageDelayLevel=1s 6s\ntransactionTimeOut=1000\ntransactionCheckInterval=1000\n"
    front = f"[rocketmq]\nenabled=true\nbrokerName=broker-a\nport={for_rocketmq}\n{keys}"
    file.write_text(f"{system}{role}[zookeeper]\nzk.zkEnable=false\n{front}[topic=t]\n")
    return file


def state(folder: Path) -> dict[str, bytes]:
    """What the state file in a broker's folder holds, but for what each broker has for itself."""
    path = folder / "rocketmq-state"
    found = decode_state(path, Files().read_bytes(path)).values if path.exists() else {}
    return {key: value for key, value in found.items() if key not in OWN_KEYS}


def replication(broker: RunningBroker) -> list[str]:
    """The lines of ``stats replication``."""
    client = broker.client()
    _, text = client.result(b"stats replication 1\r\n")
    client.close()
    return text.splitlines()


@dataclass
class Story:
    """What was done before the kill, and whom to ask afterwards."""

    slave: RunningBroker
    rocketmq: RocketMQ
    asker: Asker
    place: int
    """Of the first message of ``orders`` in the master's log."""
    asked: list[str] = field(default_factory=list)

    def check(self, message: RocketReceived) -> str:
        """Answer the broker that asks about a half message."""
        self.asked.append(message.data.decode())
        return "commit"

    def bodies(self, topic: str) -> list[str]:
        """The messages of a topic."""
        return sorted(message.data.decode() for message in self.rocketmq.browse(topic))


def fill(rocketmq: RocketMQ, asker: Asker) -> int:
    """Leave something of each kind at the master; return the place of the first message."""
    rocketmq.cluster.create_topic("orders", 2)
    producer = rocketmq.producer(fixed(0))
    sent = [producer.send("orders", f"{number}") for number in range(20)]
    asker.commit("orders", "billing", 0, 7)
    settings = SubscriptionGroupConfig(group_name="billing", retry_max_times=3)
    asker.ask(UpdateAndCreateSubscriptionGroup(), settings)
    producer.send("soon", "early", delay_level=1)
    wait_until(lambda: [each.data for each in rocketmq.browse("soon")] == [b"early"], "the first delayed message")
    with rocketmq.transactional_producer("accounts", lambda message: "unknown", fixed(0)) as transactions:
        with transactions.transaction() as transaction:
            transaction.send("paid", "whole")
        transactions.transaction().send("paid", "half")
    producer.send("later", "level", delay_level=2)
    producer.send("later", "moment", delay=6)
    assert sent[0].offset_message_id is not None
    return OffsetMessageId.parse(sent[0].offset_message_id).physical_offset


def is_copied(master: Path, slave: RunningBroker) -> bool:
    """Whether the slave has all messages, and the state that the master has on the disk."""
    lags = [line.split() for line in replication(slave) if " lag_bytes " in line]
    return len(lags) > 3 and all(each[4] == "0" for each in lags) and state(master) == state(slave.data)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A master that was killed, and its slave, which was promoted."""
    folder = tmp_path_factory.mktemp("promotion")
    port, at_master, at_slave = free_port(), free_port(), free_port()
    role = f"[slave]\nslaveId=0\nmaster=127.0.0.1:{port}\nslaveMaxDelayInMills=20\n"
    master = launch(["start", "-f", configured(folder, "m", port, at_master)], folder / "m.log")
    slave = launch(["start", "-f", configured(folder, "s", 0, at_slave, role)], folder / "s.log")
    rocketmq = RocketMQ(f"127.0.0.1:{at_master};127.0.0.1:{at_slave}")
    try:
        with Asker(Address("127.0.0.1", at_master)) as asker:
            place = fill(rocketmq, asker)
        wait_until(lambda: is_copied(folder / "m", slave), "the copy to be complete")
        master.kill()
        run_broker_command("ctl", "--data", folder / "s", "promote").check_returncode()
        with rocketmq, Asker(Address("127.0.0.1", at_slave)) as asker:
            yield Story(slave, rocketmq, asker, place)
    finally:
        slave.end()
        master.end()


def test_producers_and_consumers_go_on(story: Story) -> None:
    producer = story.rocketmq.producer(fixed(0))

    def is_sent() -> bool:
        try:
            return producer.send("orders", "next").offset == 20
        except MetaqError:
            return False

    wait_until(is_sent, "a message that is taken")
    assert story.bodies("orders") == sorted([*map(str, range(20)), "next"])


def test_a_group_goes_on_where_it_was(story: Story) -> None:
    assert story.asker.committed("orders", "billing", 0) == 7


def test_settings_of_topics_and_groups_are_kept(story: Story) -> None:
    topics = TopicConfigs.from_json(story.asker.ask(GetAllTopicConfig()).body).topic_config_table
    assert topics["orders"].write_queue_nums == 2
    groups = SubscriptionGroups.from_json(story.asker.ask(GetAllSubscriptionGroupConfig()).body)
    assert groups.subscription_group_table["billing"].retry_max_times == 3


def test_a_message_id_of_the_master_leads_to_the_message(story: Story) -> None:
    assert b"orders" in story.asker.ask(ViewMessageById(offset=story.place)).body


def test_what_waited_is_delivered_and_what_was_delivered_is_not_again(story: Story) -> None:
    wait_until(lambda: story.bodies("later") == ["level", "moment"], "the delayed messages")
    assert story.bodies("soon") == ["early"]


def test_the_producer_of_a_half_message_is_asked(story: Story) -> None:
    with story.rocketmq.transactional_producer("accounts", story.check, heartbeat_s=0.5) as transactions:
        transactions.start()
        wait_until(lambda: story.bodies("paid") == ["half", "whole"], "the half message to be committed")
    assert set(story.asked) == {"half"}, "a slow answer is asked for again"
