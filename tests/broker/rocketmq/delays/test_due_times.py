"""Which message is due next: against a sorted list."""

from __future__ import annotations

from random import Random

from examples import in_one_test
from metaq_broker.rocketmq.delays.due_times import BUCKET_MS, DueTimes


def test_nothing_waits() -> None:
    times = DueTimes()
    assert (times.next_ms(), times.take(10**15, 5), len(times)) == (None, [], 0)


def test_next_is_never_behind_what_is_due() -> None:
    times = DueTimes()
    times.add(3 * BUCKET_MS + 17, 0)
    assert times.next_ms() == 3 * BUCKET_MS
    assert times.take(3 * BUCKET_MS + 16, 5) == []
    assert times.next_ms() == 3 * BUCKET_MS + 17
    assert times.take(3 * BUCKET_MS + 17, 5) == [0]


@in_one_test("seed", range(20))
def test_against_a_sorted_list(seed: int) -> None:
    random, times, waiting, now = Random(seed), DueTimes(), list[tuple[int, int]](), 10 * BUCKET_MS
    for ordinal in range(400):
        due = max(0, now + random.randrange(-BUCKET_MS, 5 * BUCKET_MS))
        times.add(due, ordinal)
        waiting.append((due, ordinal))
        if random.random() < 0.2:
            now += random.randrange(-BUCKET_MS // 2, BUCKET_MS)
            count = random.randint(1, 9)
            due_now = sorted(each for each in waiting if each[0] <= now)[:count]
            assert times.take(now, count) == [each[1] for each in due_now]
            waiting = sorted(set(waiting) - set(due_now))
            assert len(times) == len(waiting)
            if waiting:
                assert (times.next_ms() or 0) <= waiting[0][0]
    assert times.take(10**15, 400) == [each[1] for each in sorted(waiting)]
