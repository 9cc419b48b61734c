"""The versions of Spark that tests run programs with: ``METAQ_SPARKS``, or else the installed one.

The variable has ``VERSION=PYTHON`` for each, separated by blanks and in rising order: ``4.0=/path/to/python 4.1=...``.
Each Python has the project and PySpark of that version. ``make test-spark-versions`` sets it.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys


def sparks() -> dict[str, str]:
    """The Python of each version."""
    named = os.environ.get("METAQ_SPARKS", "").split()
    installed = ".".join(importlib.metadata.version("pyspark").split(".")[:2])
    return dict(each.split("=", 1) for each in named) if named else {installed: sys.executable}


SPARKS = sparks()
