"""Findings about the brokers' machines: clock and disk space. Pure, except for the check of the local disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq.client.checkup.findings import Finding, fail, ok, warn
from metaq.client.rocketmq.statistics import clock_ms, disk_ratio

CLOCK_S_MAX: Final = 1.0
"""Warn if a clock certainly differs by more: offsets by time and retention use the broker's clock."""

FREE_RATIO_MIN: Final = 0.05
"""Warn if a smaller part of a disk is free."""

ROCKETMQ_CLEANS_AT: Final = 0.75
ROCKETMQ_REFUSES_AT: Final = 0.90
"""Defaults of RocketMQ: how full a disk is when it deletes messages of any age, and when it refuses new ones."""

_GIB: Final = 1 << 30
_FOLDER: Final = re.compile(r"free_bytes (\d+) free_bytes_min (\d+) takes_puts (true|false) path (.*)")


@dataclass(frozen=True, slots=True)
class Asked:
    """When a broker was asked for its time, and when the answer arrived, in ms since 1970 by the local clock."""

    before_ms: float
    after_ms: float


def clock_finding(what: str, broker_ms: float, asked: Asked, resolution_ms: float = 1.0) -> Finding:
    """Compare a broker's clock with the local one. ``broker_ms`` is rounded down to a multiple of ``resolution_ms``.

    The broker read its clock at some time between request and answer: the error is at most half of that interval.
    """
    difference_s = (broker_ms + resolution_ms / 2 - (asked.before_ms + asked.after_ms) / 2) / 1000
    error_s = ((asked.after_ms - asked.before_ms) + resolution_ms) / 2000
    level = warn if abs(difference_s) - error_s > CLOCK_S_MAX else ok
    return level(f"{what} clock", f"differs by {difference_s:+.3f} s from this machine's, within {error_s:.3f} s")


def machine_findings(what: str, lines: Sequence[str], asked: Asked) -> Iterator[Finding]:
    """Yield the findings from the lines of the bundled broker's ``stats machine``."""
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "now_ms" and rest.isdecimal():
            yield clock_finding(what, int(rest), asked)
        elif name == "folder" and (match := _FOLDER.fullmatch(rest)):
            yield _folder_finding(what, int(match[1]), int(match[2]), match[3] == "true", match[4])


def _folder_finding(what: str, free: int, minimum: int, takes_puts: bool, path: str) -> Finding:
    detail = f"{path}: {free / _GIB:.1f} GiB free"
    if not takes_puts:
        return fail(f"{what} disk", f"{detail}; it refuses puts, which need {minimum / _GIB:.1f} GiB")
    if free < 2 * minimum:
        return warn(f"{what} disk", f"{detail}; it refuses puts below {minimum / _GIB:.1f} GiB")
    return ok(f"{what} disk", detail)


def rocketmq_findings(what: str, figures: Mapping[str, str], asked: Asked) -> Iterator[Finding]:
    """Yield the findings from a RocketMQ broker's figures: its clock, to the second, and how full its disk is."""
    broker_ms = clock_ms(figures)
    if broker_ms is None:
        yield ok(f"{what} clock", "not known: the broker reports no time")
    else:
        yield clock_finding(what, broker_ms, asked, resolution_ms=1000.0)
    ratio = disk_ratio(figures)
    if ratio is None:
        yield ok(f"{what} disk", "not known: the broker does not report it")
    elif ratio >= ROCKETMQ_REFUSES_AT:
        yield fail(f"{what} disk", f"{ratio:.0%} full; by default it refuses messages at {ROCKETMQ_REFUSES_AT:.0%}")
    elif ratio >= ROCKETMQ_CLEANS_AT:
        yield warn(
            f"{what} disk", f"{ratio:.0%} full; by default it deletes messages early at {ROCKETMQ_CLEANS_AT:.0%}"
        )
    else:
        yield ok(f"{what} disk", f"{ratio:.0%} full")


def own_disk_finding(what: str, path: Path) -> Finding:
    """Return a finding about the free space of a local folder.

    Raises:
        OSError: The folder does not exist or cannot be accessed.
    """
    usage = shutil.disk_usage(path)
    detail = f"{path}: {usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free"
    return (ok if usage.free >= FREE_RATIO_MIN * usage.total else warn)(f"{what} disk", detail)
