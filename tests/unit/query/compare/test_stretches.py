"""The time of stretches, like tests, by the clock of a recording."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.compare.differences import differences
from bpfprof.query.compare.stretches import Stretch, own_thread, stretch_times, threads_beside
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, READY, RUNQUEUE, ProfileBuilder, python, wait

WORK = python("work", "/srv/app/test_x.py", 7)
LIBRARY = python("read", "/usr/lib/python3/site-packages/execnet/base.py", 3)


def test_cpu_time_is_of_all_threads_and_waits_of_its_own() -> None:
    made = ProfileBuilder()
    main, helper = made.thread(100), made.thread(101)
    made.spend(main, ON_CPU, 10 * MS, [WORK])
    made.wait(main, 20 * MS, [WORK, wait("lock")])
    made.spend(main, RUNQUEUE, 4 * MS, [WORK, READY])
    made.spend(main, ON_CPU, 6 * MS, [WORK])
    made.wait(helper, 15 * MS, [WORK, wait("disk")])
    made.spend(helper, ON_CPU, 25 * MS, [WORK])
    profile = made.build()
    pid = int(profile.threads[0].pid)
    first, second = Stretch("a", 0, 20 * MS, pid, 100), Stretch("b", 20 * MS, 40 * MS, pid, 100)
    one, other = stretch_times(profile, [first, second], pid)
    assert (one.wall_ns, one.cpu_ns, one.ready_ns, one.wait_ns) == (20 * MS, 15 * MS, 0, 10 * MS)
    assert (other.wall_ns, other.cpu_ns, other.ready_ns, other.wait_ns) == (20 * MS, 26 * MS, 4 * MS, 10 * MS)
    assert one.slices.sum(axis=1) == pytest.approx([15 * MS, 10 * MS])
    assert own_thread(profile, first).tolist() == [True, False]


def test_what_takes_twice_as_long_is_slower_and_a_twentieth_is_not() -> None:
    def of(ms: int) -> ProfileBuilder:
        made = ProfileBuilder()
        for _ in range(10):
            made.spend(made.thread(100) if not made.threads else 0, ON_CPU, ms * MS // 10, [WORK])
        return made

    found = {}
    for ms in (100, 105, 200):
        profile = of(ms).build()
        stretch = Stretch("a", 0, ms * MS, int(profile.threads[0].pid), 100)
        (time,) = stretch_times(profile, [stretch], stretch.pid)
        found[ms] = time.as_slices("a", 2 * MS)
    for ms, is_slower in ((105, False), (200, True)):
        (row,) = differences([found[100]], [found[ms]], is_per_run=True).rows
        assert row.cpu.is_slower(3) == is_slower


def test_threads_that_look_after_a_program_are_told_from_those_of_the_user() -> None:
    made = ProfileBuilder()
    for tid, stack in ((100, [WORK]), (101, [LIBRARY]), (102, [LIBRARY]), (103, [LIBRARY, WORK])):
        thread = made.thread(tid)
        made.spend(thread, OFF_CPU, 40 * MS, [*stack, wait("pipe")])
    busy = made.thread(104)
    made.spend(busy, ON_CPU, 40 * MS, [LIBRARY])
    assert threads_beside(made.build(), {100, 101, 103, 104}).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(("waits_in", "bound"), [("test_x", "lock"), ("result", "sleep")])
def test_a_test_is_bound_by_what_its_own_thread_does_or_waits_for(waits_in: str, bound: str) -> None:
    """Another thread sleeps meanwhile: while it holds the lock, or as what the test has asked for."""
    made = ProfileBuilder()
    main, other = made.thread(100), made.thread(101)
    asked = python("result", "/usr/lib/python3.11/concurrent/futures/_base.py")
    waiting = [WORK] if waits_in == "test_x" else [WORK, asked]
    made.spend(main, OFF_CPU, 300 * MS, [*waiting, wait("lock")], waker=made.waker(thread=other))
    made.spend(other, RUNQUEUE, 20 * MS, [WORK, READY])
    made.spend(other, OFF_CPU, 320 * MS, [python("hold", "/srv/app/test_x.py", 3), wait("sleep")])
    profile = made.build()
    profile = replace(profile, info=replace(profile.info, least_ns=50 * MS, at_work=frozenset({main})))
    assert verdict_of(profile, work_of(profile)).bound == bound
