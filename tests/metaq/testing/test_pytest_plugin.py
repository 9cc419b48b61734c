"""The fixtures as a user's project has them: pytest finds them, and who does not use them does not pay for them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
QUIET = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")


def example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if "(metaq_broker: BrokerProcess)" in block]
    return str(found)


@pytest.mark.process
def test_the_example_of_the_page_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(example())
    pytester.runpytest_inprocess(*QUIET).assert_outcomes(passed=2)


def test_partitions_are_a_setting(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmetaq_partitions = 3\n")
    pytester.makepyfile(
        """
        def test_three(metaq_memory):
            producer = metaq_memory.client().producer()
            assert {producer.send("t", "x").partition.index for _ in range(3)} == {0, 1, 2}
        """
    )
    pytester.runpytest_inprocess(*QUIET).assert_outcomes(passed=1)


@pytest.mark.parametrize("text", ["0", "many", "1001"])
def test_a_wrong_setting_is_named(pytester: pytest.Pytester, text: str) -> None:
    pytester.makeini(f"[pytest]\nmetaq_partitions = {text}\n")
    pytester.makepyfile("def test_it(metaq_memory): pass")
    result = pytester.runpytest_inprocess(*QUIET)
    result.stdout.fnmatch_lines([f"*metaq_partitions = {text}: expected 1..1000*"])
    assert result.ret != 0


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*QUIET, "--fixtures")
    result.stdout.fnmatch_lines_random(
        ["metaq_broker -- *", "    The bundled broker without any topic*", "metaq_memory -- *", "rocketmq_memory -- *"]
    )


@pytest.mark.process
def test_who_does_not_use_them_imports_one_module_beside_pytest() -> None:
    program = """
import pytest, sys
before = set(sys.modules)
import metaq.testing.pytest_plugin
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['metaq', 'metaq.testing', 'metaq.testing.pytest_plugin']", done.stderr
