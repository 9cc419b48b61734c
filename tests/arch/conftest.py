"""Tests of the tree keep the syntax trees of all files, which are millions of objects and no garbage."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _trees_are_no_garbage() -> Iterator[None]:
    """Collect nothing while trees are made, which takes three times as long as making them; nor the trees later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
