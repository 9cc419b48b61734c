"""What tests of the tree leave in their process: the syntax trees of all files."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _trees_are_no_garbage() -> Iterator[None]:
    """Leave the trees out of the garbage collections of later tests: each would take a second."""
    yield
    gc.freeze()
