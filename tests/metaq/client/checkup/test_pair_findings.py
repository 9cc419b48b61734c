"""What ``metaq doctor`` says about a pair that elects its master."""

from __future__ import annotations

import pytest

from metaq.client.checkup.pairs import PairReports
from metaq.model import Address

BROKER = "STATS\r\nbroker_id 3\r\nslave {slave}\r\npair h:2\r\npair_epoch 4\r\nEND\r\n"


def said(role: str, in_sync: str = "h:1,h:2", *, trouble: str = "", min_in_sync: int = 1, epoch: int = 4) -> str:
    lines = [f"role {role}", f"epoch {epoch}", "master h:1", f"in_sync {in_sync}", f"min_in_sync {min_in_sync}"]
    return "\r\n".join(["STATS", *lines, *([f"trouble {trouble}"] if trouble else []), "END", ""])


@pytest.mark.parametrize(
    ("answers", "level", "detail"),
    [
        ([said("master"), said("in_sync_slave")], "ok", "epoch 4, master h:1, in sync h:1 and h:2"),
        ([said("master")], "ok", "epoch 4, master h:1, in sync h:1 and h:2"),
        (
            [said("master", "h:1", trouble="broker h:2: Connection refused")],
            "warn",
            "one fault away from stopping: epoch 4, master h:1, in sync h:1; only one member has everything: "
            "broker h:2: Connection refused",
        ),
        (
            [said("master", "h:1", min_in_sync=2)],
            "fail",
            "epoch 4, master h:1, in sync h:1; only one member has everything, and minInSync is 2, so nothing is taken",
        ),
        (
            [said("master", trouble="ZooKeeper cannot be reached")],
            "warn",
            "one fault away from stopping: epoch 4, master h:1, in sync h:1 and h:2; ZooKeeper cannot be reached",
        ),
        (
            [said("learner", trouble="ZooKeeper cannot be reached")],
            "fail",
            "it has no master, so nothing is taken; ZooKeeper cannot be reached",
        ),
        ([said("master", "h:1", epoch=3), said("master")], "ok", "epoch 4, master h:1, in sync h:1 and h:2"),
    ],
)
def test_a_pair(answers: list[str], level: str, detail: str) -> None:
    reports = PairReports()
    for number, answer in enumerate(answers):
        assert reports.add(Address("h", number + 1), BROKER.format(slave="true"), answer)
    [finding] = reports.findings()
    assert (finding.level, finding.what, finding.detail) == (level, "pair of broker 3", detail)


def test_other_brokers_are_no_pair() -> None:
    reports = PairReports()
    assert not reports.add(Address("h", 1), "STATS\r\nbroker_id 3\r\nslave false\r\nEND\r\n", "")
    assert list(reports.findings()) == []
