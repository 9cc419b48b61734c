"""Seeds that failed once, and what was wrong then."""

from __future__ import annotations

from pathlib import Path

FAILED_SEEDS = Path(__file__).with_name("failed_seeds.txt")


def failed_seeds() -> dict[int, str]:
    """Return the seeds of the file, with what was wrong."""
    rows = [line.split(maxsplit=1) for line in FAILED_SEEDS.read_text().splitlines() if not line.startswith("#")]
    return {int(seed): reason for seed, reason in rows}
