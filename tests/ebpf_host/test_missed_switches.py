"""Switches that the kernel did not report: what is known of them is what the thread ran."""

from __future__ import annotations

import pytest

from tests.ebpf_host.host import STATUS, TID
from tests.ebpf_host.scheduler import KIND, SLEEPING, STATE, Scheduler, Task
from tests.ebpf_host.test_scheduler import times


@pytest.fixture
def main(scheduler: Scheduler) -> Task:
    """A thread that is on a CPU."""
    return scheduler.add(TID)


def test_it_left_although_nobody_saw_it_come(scheduler: Scheduler, main: Task) -> None:
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(1_000_000)
    scheduler.wake(main)
    scheduler.later(50_000)
    scheduler.later(200_000, main)  # it runs
    (event,) = scheduler.switch(main, scheduler.idle, SLEEPING)
    assert times(event) == (1_000_000, 50_000) and event["time_ns"] == scheduler.now - 200_000
    assert (scheduler.entry(main)["on_cpu_ns"], scheduler.entry(main)["stolen_ns"]) == (200_000, 0)
    scheduler.later(300)
    scheduler.wake(main)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (300, 0) and event["on_cpu_ns"] == 200_000


def test_it_came_although_nobody_saw_it_leave(scheduler: Scheduler, main: Task) -> None:
    scheduler.later(200_000, main)
    scheduler.later(700_000)  # it does not run
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (0, 700_000) and event["task_state"] == 0
    assert event["status"] == STATUS.BP_STACK_NOT_TAKEN and event["on_cpu_ns"] == 200_000


def test_it_was_woken_although_nobody_saw_it_leave(scheduler: Scheduler, main: Task) -> None:
    scheduler.later(200_000, main)
    scheduler.later(700_000)
    main.on_rq = False
    scheduler.wake(main)
    scheduler.later(40_000)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (700_000, 40_000) and event["task_state"] == SLEEPING
    assert event["on_cpu_ns"] == 200_000


def test_a_short_run_that_was_not_seen_is_not_stolen_time(scheduler: Scheduler, main: Task) -> None:
    """Clocks that differed a little before: it has run for less than what it is said to have run too much."""
    scheduler.later(100_000)
    main.exec_ns += 92_000
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(1_000_000)
    scheduler.later(2_000, main)
    (event,) = scheduler.switch(main, scheduler.idle, SLEEPING)
    entry = scheduler.entry(main)
    assert times(event) == (1_002_000, 0) and event["time_ns"] == scheduler.now, "it comes now, not later"
    assert entry["stolen_ns"] == 0
    assert entry["on_cpu_ns"] <= 102_000 and sum(times(entry)) + entry["on_cpu_ns"] == 1_102_000


def test_a_short_run_before_a_switch_that_was_not_seen(scheduler: Scheduler, main: Task) -> None:
    """The same, but it left unseen: it left when it had come, and all of the time since is a wait."""
    scheduler.later(100_000)
    main.exec_ns += 92_000
    scheduler.wait(main, 1000, 500)
    scheduler.later(2_000, main)
    scheduler.later(1_000_000)
    (event,) = scheduler.switch(scheduler.idle, main)
    entry = scheduler.entry(main)
    assert times(event) == (0, 1_002_000) and entry["stolen_ns"] == 0
    assert entry["on_cpu_ns"] == 100_000 and sum(times(entry)) + entry["on_cpu_ns"] == 1_103_500
    scheduler.later(50_000, main)
    scheduler.switch(main, scheduler.idle, SLEEPING)
    entry = scheduler.entry(main)
    assert entry["stolen_ns"] == 0 and entry["on_cpu_ns"] <= 150_000


def test_a_thread_that_is_watched_since_after_the_switch_was_read(scheduler: Scheduler) -> None:
    """User space added it while the stack of the thread that leaves was taken."""
    watched = {"state": STATE["BP_THREAD_RUNNABLE"], "status": STATUS.BP_STACK_NOT_TAKEN, "syscall": -1}
    new = scheduler.add(TID + 1, since_ns=scheduler.now + 15_000, first_ns=scheduler.now + 15_000, **watched)
    scheduler.switch(scheduler.idle, new)
    entry = scheduler.entry(new)
    assert (entry["runqueue_ns"], entry["blocked_ns"], entry["since_ns"]) == (0, 0, scheduler.now + 15_000)


def test_it_was_woken_for_the_next_wait_before_it_left(scheduler: Scheduler, main: Task) -> None:
    """Nobody saw it come; another CPU, whose clock is ahead by some nanoseconds, ends the wait that begins."""
    scheduler.switch(main, scheduler.idle)
    scheduler.later(50_000)
    scheduler.later(200_096, main)
    main.on_rq = False
    scheduler.wake(main, cpu=1)
    scheduler.later(-96)
    (event,) = scheduler.switch(main, scheduler.idle, SLEEPING)
    entry = scheduler.entry(main)
    assert times(event) == (0, 50_000 - 96) and entry["on_cpu_ns"] == 200_096
    scheduler.later(400)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (96, 304) and event["on_cpu_ns"] == 200_096


@pytest.mark.parametrize(("state", "waited"), [(0, (0, 1_050_000)), (SLEEPING, (1_000_000, 50_000))])
def test_it_runs_although_nobody_saw_it_come(
    scheduler: Scheduler, main: Task, state: int, waited: tuple[int, int]
) -> None:
    """It never leaves again: the clock says that it runs, and since when the scheduler does."""
    scheduler.switch(main, scheduler.idle, state)
    scheduler.later(1_000_000)
    if state:
        scheduler.wake(main)
    scheduler.later(50_000)
    main.run_delay_ns += main.queued_ns
    scheduler.later(200_000, main)
    wait, sample = scheduler.tick(main)
    assert times(wait) == waited and wait["time_ns"] == scheduler.now - 200_000
    assert (sample["kind"], sample["on_cpu_ns"]) == (KIND["BP_EVENT_SAMPLE"], 200_000)
    scheduler.later(300_000, main)
    (sample,) = scheduler.tick(main)
    entry = scheduler.entry(main)
    assert entry["state"] == STATE["BP_THREAD_ON_CPU"] and entry["since_ns"] == scheduler.now - 500_000
    assert sample["on_cpu_ns"] == 500_000
    assert scheduler.switch(main, scheduler.idle, SLEEPING).size == 0
    assert (*times(scheduler.entry(main)), scheduler.entry(main)["on_cpu_ns"]) == (*waited, 500_000)


def test_the_clock_comes_before_the_scheduler_has_counted_the_run(scheduler: Scheduler, main: Task) -> None:
    """Its figure is as old as its last tick: what it lacks is put right when the thread leaves."""
    scheduler.switch(main, scheduler.idle)
    scheduler.later(1_000_000)
    scheduler.later(100_000, main)
    scheduler.later(2_000_000)
    scheduler.tick(main)
    main.exec_ns += 2_000_000
    scheduler.later(500_000, main)
    scheduler.switch(main, scheduler.idle, SLEEPING)
    entry = scheduler.entry(main)
    assert (*times(entry), entry["on_cpu_ns"]) == (0, 1_000_000, 2_600_000)
