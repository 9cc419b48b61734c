"""The Spark queries that a console knows, with looks and events made up by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from metaq_console.cluster.history import History, SeriesKey
from metaq_console.cluster.questions import Questions
from metaq_console.errors import RequestFailed
from metaq_console.queries.board import QUERIES_MAX, QueryBoard, local_folder
from metaq_console.queries.options import read_options

from metaq.client.profile import Profile

TREE = {"verdict": "working", "name": "orders", "query_id": "q1", "lag": {"messages": 7, "bytes": 70}, "progress": None}


class MadeUp:
    """A log of events, and watches that answer with ``trees``."""

    def __init__(self) -> None:
        self.reported: dict[str, dict[str, Any]] = {}
        self.trees: dict[str, Any] = {}
        self.seen: list[tuple[str, Sequence[Mapping[str, Any]]]] = []

    def add(self, events: object) -> None:
        if not isinstance(events, list):
            raise ValueError("expected a list")
        for event in events:
            self.reported[event["id"]] = event

    def queries(self) -> dict[str, dict[str, Any]]:
        return self.reported

    def events(self, query_id: str) -> list[dict[str, Any]]:
        return [self.reported[query_id]] if query_id in self.reported else []

    def watch(self, checkpoint: str, events: Callable[[], Sequence[Mapping[str, Any]]]) -> Any:
        made_up = self

        class Watch:
            def look(self) -> Any:
                made_up.seen.append((checkpoint, events()))
                tree = made_up.trees.get(checkpoint, TREE)
                if isinstance(tree, Exception):
                    raise tree
                return type("Look", (), {"tree": lambda _: tree})()

        return Watch()


def board(made_up: MadeUp, *checkpoints: str) -> tuple[QueryBoard, History]:
    history = History()
    return QueryBoard([Path(one) for one in checkpoints], Questions(10), history, made_up.watch, made_up), history


def look(made: QueryBoard) -> None:
    asyncio.run(made.look_at_all())


def test_a_folder_is_looked_at() -> None:
    made, history = board(MadeUp(), "/queries/orders")
    assert [(row.title, row.look, row.error) for row in made.rows()] == [("orders", None, None)]
    look(made)
    assert [(row.title, row.query_id, row.look) for row in made.rows()] == [("orders", "q1", TREE)]
    assert history.points(SeriesKey("query", "/queries/orders", "lag_messages")).values == (7.0,)


def test_a_posted_query_has_an_entry() -> None:
    made_up = MadeUp()
    made, _ = board(made_up)
    made.post([{"id": "q1", "name": "orders", "checkpoint": None}])
    look(made)
    assert [(row.key, row.title, row.checkpoint) for row in made.rows()] == [("q1", "orders", None)]
    assert made_up.seen == [("", [made_up.reported["q1"]])]


def test_events_of_a_folder_belong_to_it() -> None:
    made_up = MadeUp()
    made, _ = board(made_up, "/queries/orders")
    made.post([{"id": "q1", "name": "orders", "checkpoint": "file:/queries/orders"}])
    look(made)
    assert [row.key for row in made.rows()] == ["/queries/orders"]
    assert made_up.seen == [("/queries/orders", [made_up.reported["q1"]])]


def test_a_folder_that_is_known_later_is_used() -> None:
    made_up = MadeUp()
    made, _ = board(made_up)
    made.post([{"id": "q1", "checkpoint": None}])
    look(made)
    made.post([{"id": "q1", "checkpoint": "file:///queries/a%20b"}])
    look(made)
    assert [checkpoint for checkpoint, _ in made_up.seen] == ["", "/queries/a b"]


def test_a_look_that_fails_is_said_and_the_last_one_stays() -> None:
    made_up = MadeUp()
    made, _ = board(made_up, "/a", "/b")
    look(made)
    made_up.trees["/a"] = ValueError("no such folder")
    look(made)
    assert [(row.error, row.look) for row in made.rows()] == [("no such folder", TREE), (None, TREE)]


def test_wrong_events_are_refused() -> None:
    made, _ = board(MadeUp())
    with pytest.raises(RequestFailed, match="events: expected a list") as caught:
        made.post({})
    assert caught.value.status == 409


def test_without_the_extra_posts_are_refused() -> None:
    made = QueryBoard([], Questions(10), History(), MadeUp().watch, None, "pyarrow is not installed")
    with pytest.raises(RequestFailed, match="pyarrow is not installed"):
        made.post([])


def test_an_unknown_query_is_not_found() -> None:
    with pytest.raises(RequestFailed, match="there is no query 'x'"):
        board(MadeUp())[0].row("x")


def test_the_number_of_queries_is_bounded() -> None:
    made, _ = board(MadeUp())
    made.post([{"id": f"q{number}", "last_at_ms": number} for number in range(QUERIES_MAX + 5)])
    keys = [row.key for row in made.rows()]
    assert len(keys) == QUERIES_MAX
    assert keys[-1] == f"q{QUERIES_MAX + 4}"


@pytest.mark.parametrize(
    ("checkpoint", "folder"),
    [
        ("file:/a/b", "/a/b"),
        ("file:///a%20b/", "/a b"),
        ("/a/b/", "/a/b"),
        ("hdfs://host/a", ""),
        ("s3a://bucket/a", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_only_folders_of_this_machine_are_read(checkpoint: object, folder: str) -> None:
    assert local_folder(checkpoint) == folder


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        (Profile("h:1,i:2", ca_file="ca.pem"), {"brokers": "h:1,i:2", "tlsCaFile": "ca.pem"}),
        (Profile("zk://z:1/meta"), {"zookeeper": "z:1/meta"}),
        (
            Profile("rocketmq://n:1,o:2", access_key="a", secret_key="s"),
            {"nameServers": "n:1;o:2", "accessKey": "a", "secretKey": "s"},
        ),
    ],
)
def test_the_options_of_a_read_name_the_cluster(profile: Profile, options: dict[str, str]) -> None:
    assert read_options(profile) == options
