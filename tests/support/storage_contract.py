"""What every storage of offsets does, called by the tests of each."""

from __future__ import annotations

from metaq.client.offsets import ConditionalStorage, GroupOffset, IncarnationStorage, OffsetStorage
from metaq.model import Partition, TopicPartition

P0, P1 = (TopicPartition("orders", Partition(0, index)) for index in (0, 1))
OTHER = TopicPartition("other", Partition(3, 0))


def check_by_group_and_partition(storage: OffsetStorage, *, lasting: bool = True) -> None:
    """What was saved is loaded, by group and partition; ``lasting``: after a close, too."""
    assert storage.load("g", [P0, P1, OTHER]) == {}
    storage.save("g", {P0: GroupOffset(120, -5468926877571731456), OTHER: GroupOffset(0)})
    storage.save("h", {P0: GroupOffset(7, 8)})
    storage.save("g", {P1: GroupOffset(2**62, 9), P0: GroupOffset(130, 11)})
    expected = {P0: GroupOffset(130, 11), P1: GroupOffset(2**62, 9), OTHER: GroupOffset(0, -1)}
    assert storage.load("g", [P0, P1, OTHER]) == expected
    storage.close()
    if lasting:
        assert storage.load("g", [P1, OTHER]) == {P1: GroupOffset(2**62, 9), OTHER: GroupOffset(0)}
        assert storage.load("h", [P0, P1]) == {P0: GroupOffset(7, 8)}
    assert storage.load("nobody", [P0]) == {}
    storage.save("g", {})
    storage.save("g", {P0: GroupOffset(130, 11)})
    storage.save("g", {P0: GroupOffset(130, 11)})
    assert storage.load("g", [P0]) == {P0: GroupOffset(130, 11)}
    storage.close()


def check_save_if_unchanged(storage: OffsetStorage) -> None:
    """Only what nobody has saved meanwhile is replaced; the rest of the call is saved."""
    assert isinstance(storage, ConditionalStorage)
    first = {P0: GroupOffset(10, 1), P1: GroupOffset(20, 2)}
    assert storage.save_if_unchanged("g", first, {P0: None}) == {}
    assert storage.load("g", [P0, P1]) == first
    late = {P0: GroupOffset(5, 5), P1: GroupOffset(30, 3)}
    assert storage.save_if_unchanged("g", late, {P0: GroupOffset(4), P1: GroupOffset(20)}) == {P0: GroupOffset(10, 1)}
    assert storage.load("g", [P0, P1]) == {P0: GroupOffset(10, 1), P1: GroupOffset(30, 3)}
    assert storage.save_if_unchanged("g", {P0: GroupOffset(50)}, {P0: None}) == {P0: GroupOffset(10, 1)}
    assert storage.save_if_unchanged("g", {P0: GroupOffset(10, 1)}, {P0: None}) == {}, "it is there already"
    back = {P0: GroupOffset(0, -1)}
    assert storage.save_if_unchanged("g", back, {P0: GroupOffset(10, 1)}) == {}, "a position may be moved back"
    assert storage.save_if_unchanged("g", {OTHER: GroupOffset(9)}, {OTHER: GroupOffset(8)}) == {}, "the row was lost"
    assert storage.load("g", [P0, OTHER]) == {P0: GroupOffset(0), OTHER: GroupOffset(9)}
    assert storage.save_if_unchanged("g", {}, {}) == {}
    storage.close()


def check_incarnations(storage: OffsetStorage) -> None:
    """Incarnations are kept by group and partition, beside the offsets."""
    assert isinstance(storage, IncarnationStorage)
    assert storage.incarnations("g", [P0, P1]) == {}
    storage.save("g", {P0: GroupOffset(5), P1: GroupOffset(6)})
    storage.save_incarnations("g", {}, {P0: "a" * 32})
    storage.save_incarnations("h", {P0: GroupOffset(1)}, {P0: "b" * 32, P1: "c" * 32})
    storage.save_incarnations("g", {P1: GroupOffset(0)}, {P1: "d" * 32})
    assert storage.incarnations("g", [P0, P1, OTHER]) == {P0: "a" * 32, P1: "d" * 32}
    assert storage.load("g", [P0, P1]) == {P0: GroupOffset(5), P1: GroupOffset(0)}
    storage.save_incarnations("g", {P0: GroupOffset(0)}, {P0: None})
    assert storage.incarnations("g", [P0, P1]) == {P1: "d" * 32}
    assert storage.incarnations("h", [P0]) == {P0: "b" * 32}
    assert storage.load("h", [P0]) == {P0: GroupOffset(1)}
    storage.close()
