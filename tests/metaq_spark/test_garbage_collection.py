"""What a worker imports stays out of the garbage collections that Spark makes after every task; garbage does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

GARBAGE = """
import gc, weakref
class Knot: pass
def tie():
    knot = Knot()
    knot.itself = knot
    return weakref.ref(knot)
{settle}
frozen = gc.get_freeze_count()
knot = tie()
gc.collect()
print(frozen > 10_000, knot() is None, gc.isenabled(), gc.get_freeze_count() == frozen)
"""

SETTLED = {
    "modules": """
from metaq_spark import garbage_collection
from metaq_spark.columns import decode
garbage_collection.freeze_modules()
""",
    "numba": "from metaq_spark.columns.engine import numba_kernels\nassert numba_kernels() is not None",
    "numba after modules": """
from metaq_spark import garbage_collection
from metaq_spark.columns import decode, engine
garbage_collection.freeze_modules()
assert engine.numba_kernels() is not None
""",
}


@pytest.mark.parametrize("settle", SETTLED.values(), ids=SETTLED.keys())
def test_modules_are_left_out_and_garbage_is_found(settle: str) -> None:
    program = GARBAGE.format(settle=settle)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True"] * 4, done.stderr


def test_a_switched_off_collection_stays_switched_off() -> None:
    program = "import gc; gc.disable()\nfrom metaq_spark.columns.engine import numba_kernels\nnumba_kernels()\n"
    program += "print(gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_little_is_left_for_a_collection_once_the_loops_have_run() -> None:
    program = """
import gc
from metaq_spark import garbage_collection
from metaq_spark.columns import decode, engine
from metaq.model import Partition, TopicPartition
from metaq.formats.frames import encode_frame
garbage_collection.freeze_modules()
decoder = decode.RunDecoder(TopicPartition("t", Partition(0, 0)), engine=engine.ColumnEngine(0))
assert list(decoder.decode(encode_frame(1, 0, b"body") * 10, 0)) == [] and next(decoder.flush()).num_rows == 10
assert engine.numba_kernels() is not None
gc.collect()
print(len(gc.get_objects()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert int(done.stdout) < 30_000, done.stderr  # some 60,000 where numba's half that comes with a first call is left


def test_what_is_imported_later_is_left_out_too() -> None:
    program = """
import gc
from metaq_spark import garbage_collection
garbage_collection.freeze_modules()
before = gc.get_freeze_count()
garbage_collection.freeze_modules()
again = gc.get_freeze_count()
import pyarrow
garbage_collection.freeze_modules()
print(again == before, gc.get_freeze_count() > before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.mark.parametrize("made", ["writer(schema, False)", "streamWriter(schema, False)"])
def test_a_write_is_planned_without_leaving_modules_to_collections(made: str) -> None:
    program = f"""
import gc
from pyspark.sql.types import StructType
from metaq_spark.datasource import MetaQDataSource
schema = StructType().add("value", "binary").add("topic", "string")
MetaQDataSource({{"brokers": "127.0.0.1:1"}}).{made}
gc.collect()
print(len(gc.get_objects()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert int(done.stdout) < 10_000, done.stderr  # some 50,000 where the modules of pyarrow and pyspark are left
