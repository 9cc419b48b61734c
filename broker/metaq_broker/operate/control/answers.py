"""The results of control commands as text: one function for each command, which returns lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def size(byte_count: int) -> str:
    """Format a size, such as ``1.5 GiB``."""
    amount, unit = float(byte_count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{byte_count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def span(seconds: float) -> str:
    """Format a duration in its two largest units, such as ``3 h 12 min``."""
    left, words = int(seconds), []
    for length, unit in _SPANS:
        if left >= length:
            words.append(f"{left // length} {unit}")
            left %= length
    return " ".join(words[:2]) or "0 s"


def count(number: int, noun: str) -> str:
    """Format a count, such as ``1 message`` or ``1,234 messages``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table, with numbers right-aligned."""
    if not rows:
        return []
    numeric = [all(isinstance(row[column], int) for row in rows) for column in range(len(head))]
    texts = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    lines = []
    for row in texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of names and values, with the values aligned."""
    width = max((len(name) for name, _ in pairs), default=0)
    return [f"{name.ljust(width)}  {value}".rstrip() for name, value in pairs]


Lines = Callable[[Mapping[str, Any]], list[str]]


def status(result: Mapping[str, Any]) -> list[str]:
    config, transactions = result["config"], result["transactions"]
    pairs = [
        ("broker", f"{result['broker_id']}, metaq-broker {result['version']}, process {result['pid']}"),
        ("up", span(result["uptime_s"])),
        ("address", result["address"]),
        ("metrics", f"http://{result['metrics_address']}/metrics" if result["metrics_address"] else "off"),
        *(("data", f"{folder['path']}, {size(folder['free_bytes'])} free") for folder in result["data"]),
        ("configuration", f"{config['file'] or 'none (development)'}, checksum {config['checksum']}"),
        *(("needs a restart", key) for key in config["restart_needed"]),
        *_zookeeper(result["zookeeper"]),
        *_replication(result["replication"]),
        ("durability", _durability(result["durability"])),
        *((f"  {name}", _durability(mode)) for name, mode in result["durability"]["topics"].items()),
        ("connections", f"{result['connections']:,}"),
        ("stored", _stored(result)),
        ("transactions", f"{transactions['open']} open, {transactions['prepared']} of them prepared"),
        *_troubles(result),
    ]
    return facts(pairs)


def _zookeeper(state: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    if state is not None:
        because = f": {state['reason']}" if state["reason"] else ""
        yield "zookeeper", f"{state['address']}, {state['state']}{because}"


def _replication(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if part["role"] == "alone":
        return
    lag = "" if part["lag_bytes"] is None else f", {size(part['lag_bytes'])} behind its master"
    yield "replication", f"{part['role'].replace('_', ' ')}{lag}"
    yield from _pair(part.get("pair"))
    if part["trouble"] is not None:
        yield "NOT REPLICATED", part["trouble"]
    if part["not_followed"] is not None:
        yield "NOT FOLLOWED", part["not_followed"]
    if part["state_not_copied"] is not None:
        yield "STATE NOT COPIED", part["state_not_copied"]
    for row in part["not_copied"]:
        yield "NOT COPIED", f"{_partition(row)}: {row['reason']}"


def _pair(pair: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if pair is None:
        return
    yield "pair", f"epoch {pair['epoch']}, master {pair['master']}, other member {pair['other']}"
    yield "in sync", f"{', '.join(pair['in_sync']) or 'nobody'}; minInSync {pair['min_in_sync']}"
    for row in pair["kept"]:
        yield "KEPT", f"{row['path']}, {size(row['bytes'])}: the master did not have it"


def _stored(result: Mapping[str, Any]) -> str:
    amount = f"{count(result['messages'], 'message')}, {size(result['bytes'])}"
    return f"{amount} in {count(result['topics'], 'topic')}, {count(result['partitions'], 'partition')}"


def _durability(mode: Mapping[str, Any]) -> str:
    if mode["durability"] == "group_commit":
        return "group commit: acknowledged when it is on the disk"
    behind = f"on the disk after {mode['unflush_threshold'] + 1} messages or {mode['unflush_interval_ms']} ms"
    return f"threshold: acknowledged when it is written, {behind}"


def _troubles(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for folder in result["data"]:
        if folder["puts_refused"]:
            yield "PUTS REFUSED", folder["puts_refused"]
    if result.get("clock"):
        yield "NOTHING DELETED", f"by age, {result['clock']}; `clock accept` if it is right"
    for row in result["read_only"]:
        yield "READ-ONLY", f"{_partition(row)}: {row['reason']}"
    for row in result["not_served"]:
        yield "NOT SERVED", f"{_partition(row)}: {row['reason']}"
    for row in result["quarantined"]:
        yield "DAMAGED", f"{_partition(row)}: {size(row['bytes'])} are not served"
    for row in result.get("lost", ()):
        bytes_gone = f"bytes {row['start']} to {row['end']}: {row['reason']}"
        yield "DATA LOST", f"{_partition(row)}, {bytes_gone}; `acknowledge` ends this line"
    for key in result["stuck_commits"]:
        yield "NOT READABLE YET", f"transaction {key} is committed, and the broker tries to store its messages"
    for row in result["closed"]:
        yield "closed", _partition(row)


def _partition(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}-{row['index']}"


def topics(result: Mapping[str, Any]) -> list[str]:
    head = ("TOPIC", "PARTITIONS", "MESSAGES", "SIZE", "PUTS", "DURABILITY", "RETENTION")
    rows = [
        (
            row["topic"],
            f"{row['partitions']} of {row['num_partitions']}",
            row["messages"],
            size(row["bytes"]),
            "accepted" if row["accepted"] else "refused",
            row["durability"].replace("_", " "),
            f"{row['delete_policy']} at {row['delete_when']}",
        )
        for row in result["topics"]
    ]
    return table(head, rows) or ["no topics"]


def partitions(result: Mapping[str, Any]) -> list[str]:
    head = ("PARTITION", "START", "END", "READABLE", "MESSAGES", "SEGMENTS", "SIZE", "STATE")
    served = [row for row in result["partitions"] if "not_served" not in row]
    rows = [
        (
            _partition(row),
            row["start"],
            row["end"],
            row["readable_end"],
            row["messages"],
            row["segments"],
            size(row["bytes"]),
            _state(row),
        )
        for row in served
    ]
    others = [
        f"{_partition(row)} is not served: {row['not_served']}" for row in result["partitions"] if row not in served
    ]
    return table(head, rows) + others or ["no partitions"]


def _state(row: Mapping[str, Any]) -> str:
    words = ["closed"] if row["closed"] else []
    words += [f"read-only: {row['failure']}"] if row["failure"] else []
    words += [f"damaged {start}-{end}" for start, end in row["quarantined"]]
    return "; ".join(words) or "ok"


def done(word: str) -> Lines:
    def lines(result: Mapping[str, Any]) -> list[str]:
        topic = result["topic"]
        return [f"{word} " + ", ".join(f"{topic}-{index}" for index in result[word])]

    return lines


def moved(result: Mapping[str, Any]) -> list[str]:
    topic = result["topic"]
    return [f"moved {topic}-{old} to {topic}-{new}" for old, new in result["moved"]] + ["they are closed until opened"]


def reopened(result: Mapping[str, Any]) -> list[str]:
    return [f"{_partition(result)} takes messages again", *(f"  {sentence}" for sentence in result["warnings"])]


def transactions(result: Mapping[str, Any]) -> list[str]:
    head = ("PREPARED", "AGE", "MESSAGES", "SIZE", "PARTITIONS")
    rows = [
        (
            row["key"],
            span(row["age_ms"] / 1000),
            row["messages"],
            size(row["bytes"]),
            " ".join(_partition(partition_key) for partition_key in row["partitions"]),
        )
        for row in result["prepared"]
    ]
    completed = result["ended_by_hand"]
    ended = [f"completed manually: {row['key']} ({row['outcome'].replace('_', ' ')})" for row in completed]
    return table(head, rows) + ended or ["no prepared transactions"]


def transaction(result: Mapping[str, Any]) -> list[str]:
    return [f"{result['outcome'].replace('_', ' ')} {result['key']}"]


def retention(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in result["removed"]:
        amount = f"{count(row['segments'], 'segment')}, {size(row['bytes'])}"
        lines.append(f"{_partition(row)}: {row['how']}, {amount}")
        if row["failure"]:
            lines.append(f"{_partition(row)}: FAILED: {row['failure']}")
    return lines or ["nothing was old enough"]


def reload(result: Mapping[str, Any]) -> list[str]:
    lines = [f"new topic {name}" for name in result["added"]]
    lines += [f"topic {name}: {', '.join(keys)} changed" for name, keys in result["changed"].items()]
    lines += [f"topic {name} is gone from the file; it is accepted until the next start" for name in result["removed"]]
    lines += [f"{key} takes effect at the next start" for key in result["restart_needed"]]
    lines += result["notes"]
    return [f"reloaded {result['file']}, checksum {result['checksum']}", *(lines or ["nothing changed"])]


def clock(_result: Mapping[str, Any]) -> list[str]:
    return ["the clock is accepted; messages are deleted by age again"]


def promoted(_result: Mapping[str, Any]) -> list[str]:
    return ["this broker is a master now; see that the old master does not come back as one"]


def switched(result: Mapping[str, Any]) -> list[str]:
    return [f"handed over; the master is {result['master']}"]


def left(_result: Mapping[str, Any]) -> list[str]:
    return ["this member leaves the set in sync; `join` brings it back"]


def joined(_result: Mapping[str, Any]) -> list[str]:
    return ["this member joins the set in sync when it has everything"]


def shutdown(result: Mapping[str, Any]) -> list[str]:
    return ["stopped" if result.get("stopped") else "stopping"]
