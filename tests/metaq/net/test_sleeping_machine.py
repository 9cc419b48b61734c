"""The client's clock on a machine that was asleep: deadlines, and proofs of ownership, pass meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLEPT_S = 5000
NAMESPACE = ["unshare", "--time", "--fork", "--boottime", str(SLEPT_S)]
"""As if the machine had slept so long since it was started."""

PROGRAM = """
import time
from metaq.net.clock import SYSTEM_CLOCK
print(SYSTEM_CLOCK.monotonic() - time.monotonic())
"""


def test_the_sleep_of_the_machine_counts() -> None:
    try:
        subprocess.run([*NAMESPACE, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system has no time namespaces, or does not let this user make one")
    ran = subprocess.run([*NAMESPACE, sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert float(ran.stdout) > SLEPT_S - 1
