"""How compiled loops come by their machine code."""

from __future__ import annotations

import pytest
from uncached import refuse_to_cache

from metaq.compiled import addresses


@pytest.mark.parametrize("signature", [None, "int64()"])
def test_without_any_folder_to_write_a_loop_still_compiles(
    signature: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = refuse_to_cache(monkeypatch, addresses.numba)
    monkeypatch.setattr(addresses, "private_folder", lambda: "")
    assert addresses.compiled(lambda: None, signature) == "compiled"
    assert asked == [True, False]
