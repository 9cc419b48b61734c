"""The wheel says that it has types; examples of the pages pass ``mypy --strict`` where it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from environments import ROOT, Environment

PAGES = [ROOT / "docs" / "client.md", ROOT / "docs" / "client-internals.md"]
OF_SPARK = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SESSION = "from pyspark.sql import SparkSession\n\nspark = SparkSession.builder.getOrCreate()\n"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^(?:from \S+ )?import .*$", re.MULTILINE)
LOWER_LAYERS = re.compile(r"\b(pool|directory)\b")
"""Names that the section about the layers below the client makes, and the sections behind it use."""


def modules() -> dict[str, str]:
    """A module for each section with examples; it has the imports of the sections before it."""
    found, imports = dict[str, str](), list[str]()
    lower = ""
    sections = [part for page in PAGES for part in page.read_text(encoding="utf-8").split("\n## ")[1:]]
    for section in sections:
        title, text = section.partition("\n")[0], "\n".join(BLOCK.findall(section))
        if not text:
            continue
        if lower and LOWER_LAYERS.search(text) and "pool = " not in text:
            found[lower] += text
        else:
            found[title] = "\n".join(dict.fromkeys(imports)) + "\n" + text
            lower = title if "pool = " in text else lower
        imports += IMPORT.findall(text)
    return found


@pytest.mark.long
def test_each_package_has_the_marker(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [f"{name}/py.typed" in names for name in ("metaq", "metaq_spark", "metaq_broker")] == [True] * 3


@pytest.mark.long
def test_the_examples_of_the_client_are_typed(bare_environment: Environment, tmp_path: Path) -> None:
    found = modules()
    assert len(found) > 8
    check(bare_environment, found, tmp_path)


@pytest.mark.long
def test_the_examples_for_spark_are_typed(spark_environment: Environment, tmp_path: Path) -> None:
    """The pages, each a module, whose examples have the session ``spark``, as the shell of Spark has."""
    texts = {page.stem: "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))) for page in OF_SPARK}
    found = {name: SESSION + text for name, text in texts.items() if "spark." in text}
    assert found.keys() >= {"README", "connector", "diagnosis", "monitoring", "rocketmq", "coming-from-kafka"}
    check(spark_environment, found, tmp_path)


def check(environment: Environment, found: dict[str, str], folder: Path) -> None:
    """Check modules, by what they are called in the message of a failure, with the packages of an environment."""
    for number, text in enumerate(found.values()):
        (folder / f"example_{number}.py").write_text(text, encoding="utf-8")
    (folder / "mypy.ini").write_text("[mypy]\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini"]
    ran = subprocess.run(
        [*command, "--python-executable", environment.python, *sorted(folder.glob("*.py"))],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    titles = {f"example_{number}.py": title for number, title in enumerate(found)}
    assert ran.returncode == 0, f"{ran.stdout}\n{titles}"
