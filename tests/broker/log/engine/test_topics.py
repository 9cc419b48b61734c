"""Topics: where their settings come from, what is durable, and what the engine is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.log.engine.topics import INHERIT, UNFLUSHED_MAX, UNFLUSHED_MS_MAX, ServedTopic, TopicRefused, Topics
from metaq_broker.operate.registration.wanted import broker_nodes
from remoting_brokers import CONFIG, FakeStores, Front

from metaq.discovery.stats import AcceptedTopics as MetaqTopics
from metaq.model import Address


def test_settings_survive_a_restart_and_reach_the_engine(tmp_path: Path) -> None:
    front = Front(tmp_path)
    front.topics.create("T", ServedTopic(8, 2, order=True))
    front.topics.create("gone", ServedTopic(1, 1))
    front.topics.delete("gone")
    assert front.applied.accepts("T")
    assert front.applied.topic_settings("T").num_partitions == 8  # those that are only read still exist
    assert not front.applied.accepts("gone")
    front.steps.run_all(1.0)
    again = front.restarted()
    assert again.topics.settings("T") == ServedTopic(8, 2, order=True)
    assert again.topics.settings("gone") is None
    assert again.applied.topic_settings("T").num_partitions == 8
    assert "T" not in again.config.topics


def test_topics_of_the_configuration(tmp_path: Path) -> None:
    front = Front(tmp_path)
    assert front.topics.settings("configured") == ServedTopic(3, 3)
    front.topics.create("configured", ServedTopic(5, 5, perm=4))
    assert front.topics.settings("configured") == ServedTopic(5, 5, perm=4)
    assert front.applied.topic_settings("configured").num_partitions == 5
    with pytest.raises(TopicRefused, match=r"it is configured in server\.ini; remove it there"):
        front.topics.delete("configured")


def test_topics_that_have_messages(tmp_path: Path) -> None:
    front = Front(tmp_path)
    front.stores.counts["old"] = 6
    assert front.topics.settings("old") == ServedTopic(6, 6, perm=4)  # nothing admits it any more
    wide = Front(tmp_path, config=CONFIG + "[topic=*]\n")
    assert wide.topics.settings("new") is None
    wide.stores.counts |= {"new": 1, "many": 9}
    assert wide.topics.settings("new") == ServedTopic(4, 4)
    assert wide.topics.settings("many") == ServedTopic(9, 4)
    assert {"new", "many", "configured", "TBW102"} <= wide.topics.all().keys()
    assert "*" not in wide.topics.all()


def test_partitions_are_not_counted_for_every_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front = Front(tmp_path, config=CONFIG + "[topic=*]\n")
    front.stores.counts["many"] = 9
    counted: list[int] = []
    count = front.stores.partition_counts
    monkeypatch.setattr(front.stores, "partition_counts", lambda: counted.append(1) or count())
    assert {front.topics.settings("many") for _ in range(5)} == {ServedTopic(9, 4)}
    assert len(counted) == 1
    front.stores.counts["many"] = 12
    assert {front.topics.settings("many") for _ in range(5)} == {ServedTopic(12, 4)}
    assert len(counted) == 2


def test_a_topic_is_made_like_its_template(tmp_path: Path) -> None:
    front = Front(tmp_path)
    assert front.topics.create_like("T", "TBW102", 4) == ServedTopic(4, 4)
    assert front.topics.create_like("U", "TBW102", 100) == ServedTopic(8, 8)
    assert front.topics.create_like("V", "TBW102", 0) == ServedTopic(1, 1)
    assert front.topics.create_like("W", "configured", 4) is None
    assert front.topics.create_like("W", "never", 4) is None
    front.topics.create("mine", ServedTopic(2, 2, 4 | INHERIT))
    assert front.topics.create_like("W", "mine", 4) == ServedTopic(2, 2, 4)


def test_listeners_hear_of_changes_only(tmp_path: Path) -> None:
    front = Front(tmp_path)
    heard: list[tuple[int, str | None]] = []
    front.topics.when_changed(lambda topic: heard.append((front.topics.changes, topic)))
    front.topics.create("T", ServedTopic(1, 1))
    front.topics.create("T", ServedTopic(1, 1))
    front.topics.create("T", ServedTopic(2, 2))
    front.topics.delete("T")
    front.topics.delete("T")
    front.topics.configure(front.config)
    front.stores.counts |= {"stored": 1, "U": 1}
    front.topics.create("U", ServedTopic(1, 1))
    front.topics.stored_topics_changed()
    front.topics.stored_topics_changed()
    front.stores.counts.clear()
    front.topics.stored_topics_changed()
    topics = ["T", "T", "T", None, "U", "stored", "stored"]
    assert heard == list(enumerate(topics, 1))


@pytest.mark.parametrize(
    ("topic", "settings", "text"),
    [
        ("TBW102", ServedTopic(1, 1), "it is a system topic"),
        ("SCHEDULE_TOPIC_XXXX", ServedTopic(1, 1), "it is a system topic"),
        ("a/b", ServedTopic(1, 1), "it contains a slash or a zero byte"),
        ("T", ServedTopic(-1, 1), "-1 queues; expected 0 to 4096"),
        ("T", ServedTopic(1, 5000), "5000 queues; expected 0 to 4096"),
        ("T", ServedTopic(1, 1, 8), "perm 8; expected 0 to 7"),
    ],
)
def test_refused(topic: str, settings: ServedTopic, text: str, tmp_path: Path) -> None:
    front = Front(tmp_path)
    with pytest.raises(TopicRefused, match=text):
        front.topics.create(topic, settings)
    assert front.topics.settings(topic) in (None, *front.topics.all().values())
    assert front.topics.changes == 0


def test_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.log.engine.topics.TOPICS_MAX", 2)
    front = Front(tmp_path)
    front.topics.create("T", ServedTopic(1, 1))
    front.topics.create("U", ServedTopic(1, 1))
    with pytest.raises(TopicRefused, match="clients have made 2 topics, and the broker allows no more"):
        front.topics.create("V", ServedTopic(1, 1))
    front.topics.create("U", ServedTopic(2, 2))
    assert front.topics.settings("V") is None


def test_what_is_the_brokers_own_is_hidden_from_users_of_metaq(tmp_path: Path) -> None:
    front = Front(tmp_path)
    front.topics.create("T", ServedTopic(2, 2))
    front.topics.create("%RETRY%g", ServedTopic(1, 1))
    hidden = {"TBW102", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "%DLQ%g"}
    assert [each for each in (*sorted(hidden), "T", "configured", "DLQ") if front.applied.hides(each)] == sorted(hidden)
    assert not front.config.hides("TBW102")
    nodes = broker_nodes(
        "/meta", front.applied, Address("h", 1), {"TBW102": 1, "%RETRY%g": 1, "stored": 1}, None, hidden
    )
    assert {path.split("/")[-2] for path in nodes.topics} == {"T", "configured", "stored"}
    assert not any(name in text for text in nodes.texts().values() for name in hidden)


def test_clients_of_metaq_find_made_topics_in_the_shared_configuration(tmp_path: Path) -> None:
    front = Front(tmp_path)
    before = front.config.checksum
    for topic in ("made", "configured", "%RETRY%group"):
        front.topics.create(topic, ServedTopic(5, 2))
    shared = front.applied.shared_text.decode()
    assert "[topic=made]\nnumPartitions=5\n" in shared
    assert shared.count("[topic=configured]") == 1
    assert "RETRY" not in shared
    assert "TBW102" not in shared
    assert MetaqTopics(shared).partition_count("made") == 5
    assert front.applied.checksum != before
    front.topics.delete("made")
    assert front.applied.checksum == before


def test_without_system_topics(tmp_path: Path) -> None:
    front = Front(tmp_path)
    topics = Topics(front.table, FakeStores(), front.config, lambda config: None, lambda: 0)
    assert set(topics.all()) == {"configured"}


def test_what_waits_in_system_topics_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    front = Front(tmp_path, config=CONFIG.replace("unflushThreshold=0", "unflushThreshold=1000"))
    front.topics.create("T", ServedTopic(2, 2))
    assert front.applied.topic_settings("T").unflush_threshold == 1000
    assert front.applied.topic_settings("RMQ_SYS_TRANS_HALF_TOPIC").unflush_threshold == 0
    assert front.applied.topic_settings("SCHEDULE_TOPIC_XXXX").unflush_threshold == 0


@pytest.mark.parametrize("wait_for_disk", [True, False])
def test_whether_made_topics_wait_for_the_disk(tmp_path: Path, wait_for_disk: bool) -> None:
    front = Front(tmp_path)
    applied = [front.config]
    built_in = {"SCHEDULE_TOPIC_XXXX": ServedTopic(1, 1)}
    topics = Topics(
        front.table, FakeStores(), front.config, applied.append, lambda: 0, built_in, wait_for_disk=wait_for_disk
    )
    topics.create("made", ServedTopic(2, 2), lambda error: None)
    thresholds = {
        name: applied[-1].topic_settings(name).unflush_threshold
        for name in ("made", "SCHEDULE_TOPIC_XXXX", "configured")
    }
    made = 0 if wait_for_disk else UNFLUSHED_MAX
    assert thresholds == {"made": made, "SCHEDULE_TOPIC_XXXX": 0, "configured": 0}
    interval_ms = applied[-1].topic_settings("made").unflush_interval_ms
    assert interval_ms == (10_000 if wait_for_disk else UNFLUSHED_MS_MAX)


def test_settings_that_are_older_than_the_messages_hide_none(tmp_path: Path) -> None:
    front = Front(tmp_path)
    front.topics.create("narrow", ServedTopic(1, 1, order=True))
    front.topics.create("wide", ServedTopic(8, 8))
    front.topics.create("shrinking", ServedTopic(3, 2))
    front.stores.counts |= {"narrow": 4, "shrinking": 6, "wide": 3, "forgotten": 2, "configured": 5}
    assert front.topics.keep_readable() == ["narrow", "shrinking", "forgotten"]
    assert front.topics.settings("narrow") == ServedTopic(4, 4, order=True)
    assert front.topics.settings("shrinking") == ServedTopic(6, 2)
    assert front.topics.settings("wide") == ServedTopic(8, 8)
    assert front.topics.settings("forgotten") == ServedTopic(2, 2)
    assert front.applied.topic_settings("narrow").num_partitions == 4
    assert front.topics.keep_readable() == []
