"""The examples as modules. Spark's workers do not have them on their path, so what they run of them is sent as code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from pyspark import cloudpickle

sys.path[:0] = [str(Path(__file__).parents[2] / "examples"), str(Path(__file__).parent)]

for name in ("totals_in_pandas", "big_spenders"):
    cloudpickle.register_pickle_by_value(importlib.import_module(name))
