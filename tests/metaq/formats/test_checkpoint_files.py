"""The files of a batch in a checkpoint: every form, both ways, and what is not one."""

from __future__ import annotations

import pytest

from metaq.formats.checkpoint_files import (
    DoneBatch,
    PlannedOffsets,
    are_names,
    numbered,
    parse_commit,
    parse_offsets,
)


def test_sources_in_the_order_of_the_plan() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}\n-\n{"v":2}'
    planned = parse_offsets(text)
    lines = {"0": '{"logOffset":0}', "1": "-", "2": '{"v":2}'}
    assert planned == PlannedOffsets("v1", {"batchWatermarkMs": 0}, lines)
    assert (planned.text(), are_names(planned.lines)) == (text, False)


def test_sources_with_names_in_any_order() -> None:
    planned = parse_offsets('v2\n{"sourceMetadataInfo":{}}\nzebras:-\norders:{"v":2}\n')
    assert list(planned.lines.items()) == [("orders", '{"v":2}'), ("zebras", "-")]
    assert planned.text() == 'v2\n{"sourceMetadataInfo":{}}\norders:{"v":2}\nzebras:-'
    assert are_names(planned.lines)


@pytest.mark.parametrize(
    ("names", "order", "named"),
    [
        (["10", "9", "8", "7", "6", "5", "4", "3", "2", "1", "0"], [str(n) for n in range(11)], False),
        (["1", "2"], ["1", "2"], True),
        (["b", "10", "9"], ["10", "9", "b"], True),
        ([], [], False),
    ],
)
def test_the_order_of_sources(names: list[str], order: list[str], named: bool) -> None:
    assert (numbered(names), are_names(names)) == (order, named)


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ('v1\n{"nextBatchWatermarkMs":9}', DoneBatch(9, None)),
        ("v1\n{}", DoneBatch(0, None)),
        ('v2\n{"nextBatchWatermarkMs":9,"stateUniqueIds":{"0":[["a"]]}}', DoneBatch(9, None)),
        (
            'v3\n{"nextBatchWatermarkMs":9,"sinkMetadataMap":{"old":{"isActive":false},"new":{"isActive":true}}}',
            DoneBatch(9, "new"),
        ),
    ],
)
def test_what_is_said_of_a_batch_that_is_done(text: str, done: DoneBatch) -> None:
    assert parse_commit(text) == done


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is in Spark's form '', known is v1 and v2; leave the checkpoint to Spark"),
        ("v3\n{}\n-", "is in Spark's form 'v3', known is v1 and v2"),
        ("v2", "is cut off"),
        ("v2\n\norders:-", "holds '' where JSON about the batch should be"),
        ("v2\n{}\n-", "holds '-' where the name of a source and its offset should be"),
    ],
)
def test_what_is_not_the_offsets_of_a_batch(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^" + says.split("'")[0]) as caught:
        parse_offsets(text)
    assert says in str(caught.value)
