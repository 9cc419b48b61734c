"""A process that may open few files: connections leave room for the partitions, and optional code stays optional."""

from __future__ import annotations

import errno
import resource

import pytest
from metaq_broker import block_kernel
from metaq_broker.frontend.server import ACCEPTED_AT_ONCE, OTHER_FILES, connections_that_fit
from metaq_broker.put_block import BlockNumbering

from metaq.message_id import EPOCH_MS, IdRange
from metaq.model import INT32_MAX
from metaq.wire.text.frames import encode_frame


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (64, 8),
        (300, 300 - ACCEPTED_AT_ONCE - OTHER_FILES),
        (1024, 744),
        (65_536, 49_128),
        (resource.RLIM_INFINITY, INT32_MAX),
    ],
)
def test_connections_leave_files_for_everything_else(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_that_fit() == connections


def test_blocks_are_numbered_plainly_when_no_file_is_left_for_the_compiled_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(block_kernel, "compiled", compiled)
    numbering = BlockNumbering(plain_bytes_max=0)
    block = encode_frame(0, 0, b"body")
    for number in range(2):
        ids = IdRange(EPOCH_MS + number, 0, 1, 0)
        numbered, _ = numbering.number(block, 1, ids, 1000, 4096)
        numbering.join()
        assert bytes(numbered) == encode_frame(ids.first, 0, b"body")
    assert numbering.loading
    assert not numbering.compiled
