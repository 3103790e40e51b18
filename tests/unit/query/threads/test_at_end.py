"""What each thread does now: on a CPU, ready, or what it waits for."""

from __future__ import annotations

from bpfprof.model.spans import ThreadState
from bpfprof.query.threads.at_end import NowGroup, now_of
from bpfprof.query.work.shares import DISK, IDLE, OTHER, PYTHON, READY
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, python, wait

ON, OFF, READY_NOW = ThreadState.ON_CPU, ThreadState.OFF_CPU, ThreadState.RUNQUEUE


def made() -> ProfileBuilder:
    """Four workers that compute and read, and a thread that did nothing but wait for work."""
    builder = ProfileBuilder()
    for number in range(4):
        thread = builder.thread(10 + number, f"worker_{number}", pid=1)
        builder.spend(thread, ON_CPU, 500 * MS, [python("work")])
        builder.wait(thread, 500 * MS, [python("read"), wait("disk")])
    thread = builder.thread(1, "MainThread", pid=1)
    builder.wait(
        thread, 1_000 * MS, [python("main"), python("Event.wait", "/usr/lib/python3.11/threading.py"), wait("lock")]
    )
    return builder


def test_threads_of_a_role_that_do_the_same_are_one() -> None:
    profile = made().build()
    states = {(1, 10): OFF, (1, 11): ON, (1, 12): OFF, (1, 13): READY_NOW, (1, 1): OFF}
    found = now_of(profile, work_of(profile), states)
    assert found[:3] == [
        NowGroup("worker_1", 1, PYTHON),
        NowGroup("worker_3", 1, READY),
        NowGroup("worker_0..2", 2, DISK),
    ]
    (last,) = found[3:]
    assert (last.name, last.thread_count) == ("MainThread", 1) and last.share >= IDLE


def test_threads_that_have_ended_are_not_there() -> None:
    profile = made().build()
    assert now_of(profile, work_of(profile), {}) == []
    assert now_of(profile, work_of(profile), {(1, 11): ON, (7, 7): ON}) == [NowGroup("worker_1", 1, PYTHON)]


def test_what_a_thread_waits_for_may_not_be_known() -> None:
    builder = ProfileBuilder()
    builder.spend(builder.thread(10, "worker", pid=1), ON_CPU, 500 * MS, [python("work")])
    profile = builder.build()
    assert now_of(profile, work_of(profile), {(1, 10): OFF}) == [NowGroup("worker", 1, OTHER)]
