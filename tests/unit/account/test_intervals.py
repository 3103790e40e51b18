"""The intervals of threads: where they were at the start, where they were at the end, and those between."""

from __future__ import annotations

import pytest
from bpfprof.account.intervals import Intervals, collect_intervals

from bpfprof.model.samples import TOTAL_DTYPE
from tests.unit.recording.hand_made import (
    BLOCKED,
    IOCTL,
    MS,
    RUNNABLE,
    START_NS,
    UNKNOWN,
    HandMade,
    Story,
    row,
)


def collected(made: HandMade, end_ms: int | None) -> Intervals:
    """With an end at end_ms, or without one."""
    if end_ms is not None:
        made.end = {"end_ns": START_NS + end_ms * MS}
    recording = made.recording()
    assert bool(recording.unfinished) == (end_ms is None)
    return collect_intervals(recording)


def times_ms(intervals: Intervals, thread: int = 0) -> tuple[float, float, float]:
    """(on CPU, blocked, run queue)."""
    three = intervals.on_cpu_ns, intervals.blocked_ns, intervals.runqueue_ns
    on_cpu, blocked, runqueue = (int(times[thread]) / MS for times in three)
    return on_cpu, blocked, runqueue


def waits_ms(intervals: Intervals, thread: int = 0) -> list[tuple[float, float, float]]:
    """(back at, blocked, run queue) of each wait, milliseconds since the start."""
    rows = intervals.waits.of_thread(thread)
    return [
        ((int(wait["time_ns"]) - START_NS) / MS, int(wait["blocked_ns"]) / MS, int(wait["runqueue_ns"]) / MS)
        for wait in rows
    ]


def assert_whole(intervals: Intervals) -> None:
    """on-CPU + blocked + run queue = wall time."""
    accounted = intervals.on_cpu_ns + intervals.blocked_ns + intervals.runqueue_ns
    assert accounted.tolist() == (intervals.last_ns - intervals.first_ns).tolist()


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process()
    return empty


def test_a_thread_that_runs_sleeps_and_runs(made: HandMade) -> None:
    Story.begin(made).run(3 * MS).block(10 * MS, ready=2 * MS).run(5 * MS).total()
    intervals = collected(made, 20)
    assert times_ms(intervals) == (8, 10, 2)
    assert waits_ms(intervals) == [(15, 10, 2)]
    assert_whole(intervals)


def test_asleep_at_the_start(made: HandMade) -> None:
    story = Story.begin(made, state=BLOCKED)
    story.wait = {"syscall": IOCTL, "task_state": 1}
    story.now_ns += 7 * MS
    story.run(3 * MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (3, 7, 0) and waits_ms(intervals) == [(7, 7, 0)]
    assert_whole(intervals)


def test_asleep_from_start_to_end(made: HandMade) -> None:
    values = {"state": BLOCKED, "since_ns": START_NS, "syscall": IOCTL, "task_state": 1, "args": (9, 8, 7)}
    stack = made.stack((made.code("wait"), 0, 0))
    made.thread()
    made.totals.append(row(TOTAL_DTYPE, time_ns=START_NS + 10 * MS, stack=stack, **values))
    intervals = collected(made, 10)
    assert times_ms(intervals) == (0, 10, 0) and waits_ms(intervals) == [(10, 10, 0)]
    (wait,) = intervals.waits.of_thread(0)
    assert (wait["stack"], wait["syscall"], wait["args"].tolist()) == (stack, IOCTL, [9, 8, 7])
    assert_whole(intervals)


def test_still_asleep_at_the_end(made: HandMade) -> None:
    Story.begin(made).run(4 * MS).block(6 * MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (4, 6, 0) and waits_ms(intervals) == [(10, 6, 0)]
    assert_whole(intervals)


def test_woken_but_not_running_at_the_end(made: HandMade) -> None:
    Story.begin(made).run(4 * MS).block(5 * MS, ready=MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (4, 5, 1) and waits_ms(intervals) == [(10, 5, 1)]
    assert_whole(intervals)


def test_runnable_at_the_end(made: HandMade) -> None:
    Story.begin(made).run(4 * MS).preempt(6 * MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (4, 0, 6) and waits_ms(intervals) == [(10, 0, 6)]
    assert_whole(intervals)


def test_running_from_start_to_end(made: HandMade) -> None:
    Story.begin(made).run(10 * MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (10, 0, 0) and waits_ms(intervals) == []


def test_time_stolen_from_a_thread_that_still_runs_is_run_queue_time(made: HandMade) -> None:
    Story.begin(made).run(4 * MS).block(MS).run(3 * MS, stolen=2 * MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (7, 1, 2) and intervals.open_stolen_ns.tolist() == [2 * MS]
    assert_whole(intervals)


def test_time_stolen_before_a_wait_is_run_queue_time(made: HandMade) -> None:
    Story.begin(made).run(4 * MS, stolen=3 * MS).block(2 * MS).run(MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (5, 2, 3)
    assert_whole(intervals)


def test_born_and_died_in_between(made: HandMade) -> None:
    Story.begin(made).run(20 * MS).total()
    child = Story.begin(made, tid=101, first_ns=START_NS + 5 * MS, state=RUNNABLE)
    child.now_ns += MS
    child.run(2 * MS).block(4 * MS).run(MS).die()
    intervals = collected(made, 20)
    assert (int(intervals.first_ns[1]) - START_NS, int(intervals.last_ns[1]) - START_NS) == (5 * MS, 13 * MS)
    assert times_ms(intervals, 1) == (3, 4, 1)
    assert waits_ms(intervals, 1) == [(6, 0, 1), (12, 4, 0)]
    assert_whole(intervals)


def test_the_last_totals_count(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).total().block(3 * MS).total().run(4 * MS).total().block(1 * MS).total()
    intervals = collected(made, 10)
    assert times_ms(intervals) == (6, 4, 0) and waits_ms(intervals) == [(5, 3, 0), (10, 1, 0)]


def test_threads_do_not_mix(made: HandMade) -> None:
    for number in range(5):
        story = Story.begin(made, tid=200 + number)
        for turn in range(4):
            story.run((number + 1) * MS, (MS // 2, 0)).block((turn + 1) * MS)
        story.run((30 - 10 - 4 * (number + 1)) * MS).total()
    made.samples.reverse()
    made.waits.reverse()
    intervals = collected(made, 30)
    for number in range(5):
        assert times_ms(intervals, number) == (20, 10, 0)
        assert [blocked for _, blocked, _ in waits_ms(intervals, number)] == [1, 2, 3, 4]
        rows = intervals.samples.of_thread(number)
        assert (
            len(rows) == 4 and (rows["thread"] == number).all() and rows["time_ns"].tolist() == sorted(rows["time_ns"])
        )
    assert_whole(intervals)


def test_without_an_end_it_ends_with_the_last_thing_seen(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).total().block(3 * MS, ready=MS).run(4 * MS).block(5 * MS).run(MS)
    Story.begin(made, tid=101).run(2 * MS).block(1 * MS).total()
    intervals = collected(made, None)
    assert intervals.end_ns == START_NS + 15 * MS, "when the first thread was back on a CPU"
    assert times_ms(intervals, 0) == (6, 8, 1)
    assert times_ms(intervals, 1) == (2, 13, 0), "nothing was heard of it since: it still sleeps"
    assert_whole(intervals)


def test_without_an_end_and_without_totals(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).block(3 * MS).run(5 * MS).block(2 * MS).run(MS)
    intervals = collected(made, None)
    assert times_ms(intervals) == (7, 5, 0)
    assert_whole(intervals)


def test_without_an_end_the_dead_stay_dead(made: HandMade) -> None:
    Story.begin(made).run(20 * MS).total()
    Story.begin(made, tid=101).run(2 * MS).block(3 * MS).run(1 * MS).die()
    intervals = collected(made, None)
    assert times_ms(intervals, 1) == (3, 3, 0) and int(intervals.last_ns[1]) == START_NS + 6 * MS
    assert_whole(intervals)


def test_without_an_end_no_wait_is_counted_twice(made: HandMade) -> None:
    """The time of the totals is taken before the table is read: a wait may end between the two and be in both."""
    story = Story.begin(made).run(2 * MS).block(3 * MS).run(1 * MS)
    story._total(story.since_ns - 1000)
    Story.begin(made, tid=101).run(20 * MS).total()
    intervals = collected(made, None)
    assert times_ms(intervals) == (17, 3, 0)
    assert_whole(intervals)


def test_without_an_end_the_last_wait_may_be_missing(made: HandMade) -> None:
    """It is written when its times are final; the totals have it already."""
    Story.begin(made).run(2 * MS).block(3 * MS, ready=1 * MS).run(2 * MS).block(4 * MS).run(1 * MS).total()
    made.waits.pop()
    intervals = collected(made, None)
    assert times_ms(intervals) == (5, 7, 1)
    assert_whole(intervals)


def test_totals_without_any_event(made: HandMade) -> None:
    made.thread()
    made.totals.append(row(TOTAL_DTYPE, time_ns=START_NS, since_ns=START_NS, state=UNKNOWN, running_ns=9 * MS))
    intervals = collected(made, 10)
    assert times_ms(intervals) == (9, 0, 1), "running all the time, but for what was stolen"


def test_a_recording_of_nothing(made: HandMade) -> None:
    intervals = collected(made, None)
    assert intervals.start_ns == intervals.end_ns == START_NS and len(intervals.waits) == len(intervals.samples) == 0
