"""``metaq-spark checkpoint show | move | drop | rename | undo``: arguments in, text or JSON out."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from metaq.model import Partition, TopicPartition
from metaq_spark.backend import FORMATS, Backend, LagLookup, backend_named
from metaq_spark.checkpoint.folder import (
    CheckpointFolderError,
    add_batch,
    local_folder,
    read_checkpoint,
    remove_planned,
)
from metaq_spark.checkpoint.move import AfterBatch, Choice, check_movable, plan_drop, plan_move, plan_rename
from metaq_spark.checkpoint.report import checkpoint_text, checkpoint_tree, move_text, move_tree
from metaq_spark.checkpoint.sources import CheckpointSource, is_move, read_sources
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.options.positions import Group, Position, Timestamps
from metaq_spark.options.values import timestamp_ms


def add_arguments(checkpoint: argparse.ArgumentParser) -> None:
    """Add the verbs of ``metaq-spark checkpoint``."""
    checkpoint.set_defaults(command=lambda _: _show_usage(checkpoint))
    verbs = checkpoint.add_subparsers(metavar="VERB")
    show = verbs.add_parser("show", help="where the query is, beside what the brokers hold")
    _add_folder(show)
    add_brokers(show, required=False)
    show.set_defaults(command=_show)
    move = verbs.add_parser("move", help="let the query go on somewhere else when it starts again")
    _add_folder(move)
    add_brokers(move, required=True)
    _add_position(move)
    move.add_argument(
        "--yes", action="store_true", help="do it: the query is stopped. Without, only say what would change"
    )
    _add_consents(move)
    move.set_defaults(command=_move)
    drop = verbs.add_parser("drop", help="let the query forget a topic, or partitions of it")
    _add_folder(drop)
    _add_choice(drop, topic_required=True)
    drop.add_argument(
        "--yes", action="store_true", help="do it: the query is stopped. Without, only say what would change"
    )
    _add_consents(drop)
    drop.set_defaults(command=_drop)
    rename = verbs.add_parser("rename", help="give a source another name; the query goes on where it was")
    _add_folder(rename)
    rename.add_argument("--source", required=True, metavar="NAME", help="the name that it has")
    rename.add_argument("--name", required=True, help="the name that readStream.name gives it from now on")
    rename.add_argument(
        "--yes", action="store_true", help="do it: the query is stopped. Without, only say what would change"
    )
    rename.set_defaults(command=_rename)
    undo = verbs.add_parser("undo", help="take back a move, as long as the query has not been started since")
    _add_folder(undo)
    undo.add_argument("--yes", action="store_true", help="do it: the query has not been started since the move")
    undo.set_defaults(command=_undo)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the query's checkpointLocation: a local path or file: URI")
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def add_brokers(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that name brokers, and how to reach them."""
    several = len(FORMATS) > 1
    where = parser.add_mutually_exclusive_group(required=required) if several else parser
    for name, one in FORMATS.items():
        where.add_argument(
            one.flag, required=required and not several, metavar=one.syntax, help=one.brokers, dest=f"brokers_{name}"
        )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="how to reach them, such as tlsCaFile=ca.pem",
    )


def _add_position(parser: argparse.ArgumentParser) -> None:
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to", metavar="POSITION", help="earliest, latest, or JSON with offsets, as startingOffsets")
    to.add_argument("--to-time", metavar="TIME", help="the first message at or after: ms since 1970, or ISO 8601")
    to.add_argument("--to-batch", type=int, metavar="N", help="where batch N ended: batch N+1 is read again")
    _add_choice(parser, topic_required=False)


def _add_consents(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-state", action="store_true", help="move a stateful query and leave its state as it is")
    parser.add_argument(
        "--abandon-planned", action="store_true", help="give up a batch that is planned and not committed"
    )


def _add_choice(parser: argparse.ArgumentParser, *, topic_required: bool) -> None:
    parser.add_argument("--source", metavar="SOURCE", help="only this source: the name or number that show has")
    parser.add_argument("--topic", required=topic_required, help="only this topic")
    parser.add_argument(
        "--partition",
        action="append",
        metavar="PARTITION",
        help="only this partition of --topic; may be repeated",
    )


def _show(arguments: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(local_folder(arguments.folder))
    backend, raw = _backend(arguments), raw_options(arguments)
    lookup = backend.lag_lookup(raw) if raw else None
    sources = [(source, _lags(source, backend, lookup)) for source in read_sources(checkpoint)]
    return _print(arguments, checkpoint_tree(checkpoint, sources), checkpoint_text)


def _move(arguments: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(local_folder(arguments.folder))
    check_movable(checkpoint, keep_state=arguments.keep_state, abandon_planned=arguments.abandon_planned)
    backend = _backend(arguments)
    cluster = backend.cluster(raw_options(arguments))
    position, choice = _position(arguments, backend), _choice(arguments, backend)
    move = plan_move(checkpoint, cluster, position, choice, int(time.time() * 1000))
    if arguments.yes:
        add_batch(checkpoint, move.batch)
    return _print(arguments, move_tree(checkpoint, move, done=arguments.yes), move_text)


def _drop(arguments: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(local_folder(arguments.folder))
    check_movable(checkpoint, keep_state=arguments.keep_state, abandon_planned=arguments.abandon_planned)
    partitions = None
    if arguments.partition is not None:
        named = (TopicPartition(arguments.topic, Partition.parse_any(name)) for name in arguments.partition)
        partitions = frozenset(named)
    move = plan_drop(checkpoint, Choice(arguments.source, arguments.topic, partitions), int(time.time() * 1000))
    if arguments.yes:
        add_batch(checkpoint, move.batch)
    return _print(arguments, move_tree(checkpoint, move, done=arguments.yes), move_text)


def _rename(arguments: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(local_folder(arguments.folder))
    check_movable(checkpoint, keep_state=True, abandon_planned=False)
    move = plan_rename(checkpoint, arguments.source, arguments.name, int(time.time() * 1000))
    if arguments.yes:
        add_batch(checkpoint, move.batch)
    return _print(arguments, move_tree(checkpoint, move, done=arguments.yes), move_text)


def _undo(arguments: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(local_folder(arguments.folder))
    planned = checkpoint.planned
    if planned is None or not is_move(planned):
        raise CheckpointFolderError(
            checkpoint.folder, "its last batch is no move that has not run yet; nothing to undo"
        )
    if arguments.yes:
        remove_planned(checkpoint)
    tree = {"checkpoint": str(checkpoint.folder), "done": arguments.yes, "batch": planned.batch_id}
    return _print(arguments, tree, _undo_text)


def _undo_text(tree: Any) -> str:
    if tree["done"]:
        return f"Done: offsets/{tree['batch']} was removed; the query continues where it was before the move."
    return (
        f"offsets/{tree['batch']} would be removed. If the query was started since the move, a sink may know\n"
        "the batch; then start it again, and move it back. If it was not, give --yes."
    )


def _print(arguments: argparse.Namespace, tree: Any, text: Any) -> int:
    sys.stdout.write((json.dumps(tree) if arguments.json else text(tree)) + "\n")
    return 0


def _named(arguments: argparse.Namespace) -> dict[str, str]:
    """The brokers that are named, by their format; at most one."""
    given = {name: getattr(arguments, f"brokers_{name}") for name in FORMATS}
    return {name: brokers for name, brokers in given.items() if brokers is not None}


def _backend(arguments: argparse.Namespace) -> Backend:
    return backend_named(next(iter(_named(arguments)), "metaq"))


def raw_options(arguments: argparse.Namespace) -> dict[str, str]:
    """How to reach the brokers, as options of a read; from the arguments of ``add_brokers``."""
    raw = {FORMATS[name].brokers_option: brokers for name, brokers in _named(arguments).items()}
    for pair in arguments.option:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ValueError(f"--option {pair!r}: expected NAME=VALUE, for example tlsCaFile=ca.pem")
        raw[name] = value
    return raw


def _lags(source: CheckpointSource, backend: Backend, lookup: LagLookup | None) -> Sequence[PartitionLag] | None:
    if lookup is None or source.read_to is None or source.format != backend.name:
        return None
    return lookup.lags(source.read_to, None)


def _position(arguments: argparse.Namespace, backend: Backend) -> Position | AfterBatch:
    if arguments.to_batch is not None:
        return AfterBatch(arguments.to_batch)
    option, text = ("--to-time", arguments.to_time) if arguments.to is None else ("--to", arguments.to)
    try:
        position = Timestamps(timestamp_ms(text)) if arguments.to is None else backend.notation.position(text)
    except ValueError as error:
        raise ValueError(f"{option} {text!r}: {error}") from None
    if isinstance(position, Group):
        raise ValueError("--to group: a group's offsets are not looked up here; expected earliest, latest or JSON")
    return position


def _choice(arguments: argparse.Namespace, backend: Backend) -> Choice:
    if arguments.partition is None:
        return Choice(arguments.source, arguments.topic, None, backend.name, backend.system)
    if arguments.topic is None:
        raise ValueError("--partition: give --topic as well, the topic that it is a partition of")
    parse = backend.notation.parse_partition
    partitions = frozenset(TopicPartition(arguments.topic, parse(name)) for name in arguments.partition)
    return Choice(arguments.source, arguments.topic, partitions, backend.name, backend.system)


def _show_usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2
