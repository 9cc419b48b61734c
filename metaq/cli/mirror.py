"""``metaq mirror``: copies topics from one cluster to another, and resumes where it stopped."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import topic_name
from metaq.cli.command import FOLLOW, argument, command
from metaq.cli.output import counted, note, print_rows, time_text
from metaq.cli.status_line import StatusLine

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.operate.mirror.mirror import Mirror

POLL_S: Final = 0.5
"""Between two looks for new messages, with ``--follow``."""
RETRY_S: Final = 5.0
"""Pause before a retry, with ``--follow``, if a server cannot be asked."""
_CLUSTER: Final = "as --cluster takes it, or the name of a profile"


@command(
    "mirror",
    "copy topics to another cluster, MetaQ or RocketMQ, at least once",
    argument("source", metavar="SOURCE", help=f"cluster to read, {_CLUSTER}"),
    argument("target", metavar="TARGET", help="cluster to write to"),
    argument("topics", type=topic_name, nargs="+", metavar="TOPIC"),
    argument("--checkpoint", required=True, metavar="FILE", help="for the progress, kept between runs"),
    argument("--prefix", default="", help="put before the names of topics at the target (default: nothing)"),
    argument("--fold", action="store_true", help="let partitions share one where the target has fewer"),
    argument("--start", choices=("earliest", "latest"), default="earliest", help="where a new mirror begins"),
    FOLLOW,
    argument("--json", action="store_true", help="counts as one JSON object a line"),
    examples=("{cluster} {cluster} t --prefix copy- --checkpoint {folder}/mirror.json",),
    abilities=(("`mirror`", "source and target", "source and target", "source and target"),),
    list_name="topics",
)
def _run(options: argparse.Namespace, profile: CommandProfile) -> int:
    from metaq.operate.mirror.mirror import Mirror
    from metaq.operate.mirror.progress import ProgressFile

    source, target = _named(options.source, profile), _named(options.target, profile)
    progress = ProgressFile(Path(options.checkpoint), source.cluster, target.cluster, options.prefix)
    with progress, source.connect() as read, target.connect() as written:
        mirror = Mirror(
            *(read, written, options.topics, progress),
            prefix=options.prefix,
            fold=options.fold,
            start=options.start,
        )
        mirror.settle()
        try:
            with StatusLine().progress(lambda: mirror.messages, "copied"):
                _copy(mirror, follow=options.follow)
        finally:
            _print(mirror, options)
    return 0


def _named(text: str, given: CommandProfile) -> CommandProfile:
    """Return the cluster for an argument, with the common timeout."""
    from dataclasses import replace

    from metaq.cli.profile import named_cluster

    found = named_cluster(text)
    return found if given.timeout is None else replace(found, timeout=given.timeout)


def _copy(mirror: Mirror, *, follow: bool) -> None:
    """Copy the stored messages; with ``follow`` forever, even if servers are away for a while."""
    from metaq.cli.arguments import now_ms
    from metaq.errors import MetaqError

    pause = threading.Event()
    while True:
        try:
            count = mirror.copy()
        except MetaqError as error:
            if not (follow and error.retryable):
                raise
            note(f"{time_text(now_ms())}: {error}; tried again")
            pause.wait(RETRY_S)
            continue
        if not follow:
            return
        if not count:
            pause.wait(POLL_S)


def _print(mirror: Mirror, options: argparse.Namespace) -> None:
    rows = [
        {
            "topic": one.topic,
            "partition": str(one.partition),
            "target": str(one.target),
            "messages": one.messages,
            "position": one.position,
        }
        for one in mirror.copied
    ]
    print_rows(rows, ("topic", "partition", "target", "messages", "position"), as_json=options.json)
    note(f"{counted(sum(one.messages for one in mirror.copied))} copied")
