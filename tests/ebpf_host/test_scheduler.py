"""Waits of one thread: where their time goes, which have an event and which are added up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bpfprof.kernel.kernel_facts import kernel_version_code
from tests.ebpf_host.host import CONFIG, CONSTANTS, STATUS, TGID, TID, Host
from tests.ebpf_host.scheduler import (
    DEAD,
    FUTEX,
    KIND,
    MICROSECOND,
    READ,
    SLEEPING,
    STATE,
    UNINTERRUPTIBLE,
    WRITE,
    Events,
    Scheduler,
    Task,
)

SHORT_KINDS = CONSTANTS["BP_SHORT_WAITS"]
FORK, WAIT = KIND["BP_EVENT_FORK"], KIND["BP_EVENT_WAIT"]
SHORT, EXIT_EVENT = KIND["BP_EVENT_SHORT"], KIND["BP_EVENT_EXIT"]
MIN_BLOCK_NS = 100 * MICROSECOND
TIMES = ("blocked_ns", "runqueue_ns")
# What is noted of a thread when it leaves the CPU, and when it is woken.
OF_WAITS = (
    *("syscall", "task_state", "stack", "status", "object", "flags", "one_in"),
    *("waker_tid", "waker_tgid", "waker_kind", "waker_stack", "holder", "holder_stack"),
)


@pytest.fixture
def main(scheduler: Scheduler) -> Task:
    """A thread that is on a CPU."""
    return scheduler.add(TID)


def kinds(events: Events) -> list[int]:
    return [int(kind) for kind in events["kind"]]


def times(event: np.void) -> tuple[int, int]:
    return int(event["blocked_ns"]), int(event["runqueue_ns"])


def open_sums(scheduler: Scheduler, task: Task) -> dict[tuple[int, ...], tuple[int, int, int]]:
    """The sums of its entry: (syscall, task_state, flags, arg) -> count, blocked, run queue."""
    sums = scheduler.entry(task)["short_waits"]
    names = ("syscall", "task_state", "flags", "arg"), ("count", *TIMES)
    found = {
        tuple(int(row[name]) for name in names[0]): tuple(int(row[name]) for name in names[1])
        for row in sums
        if row["count"]
    }
    assert len(found) == np.count_nonzero(sums["count"]), "a kind has one sum"
    return found  # type: ignore[return-value]


def test_a_wait_is_split_at_the_wake_up(scheduler: Scheduler, main: Task) -> None:
    main.call(READ, 5, 0x7000, 4096)
    scheduler.later(7000, main)
    assert not len(scheduler.switch(main, scheduler.idle, SLEEPING))
    scheduler.later(30_000)
    assert not len(scheduler.wake(main))
    scheduler.later(4_000)
    (event,) = scheduler.switch(scheduler.idle, main, cpu=1)
    expected = {"kind": WAIT, "tid": TID, "tgid": TGID, "time_ns": scheduler.now, "cpu": 1, "syscall": READ}
    expected |= {"task_state": SLEEPING, "on_cpu_ns": 7000, "blocked_ns": 30_000, "runqueue_ns": 4_000}
    expected |= {"stolen_ns": 0, "early_ns": 0, "stack": 0, "status": STATUS.BP_STACK_NOT_TAKEN, "flags": 0}
    assert {name: int(event[name]) for name in expected} == expected
    assert event["args"].tolist() == [5, 0x7000, 4096]


def test_a_preempted_thread_waits_for_a_cpu_only(scheduler: Scheduler, main: Task) -> None:
    scheduler.switch(main, scheduler.idle)
    scheduler.later(500)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (0, 500) and event["task_state"] == 0


def test_preempted_on_the_way_to_sleep_is_still_runnable(scheduler: Scheduler, main: Task) -> None:
    scheduler.switch(main, scheduler.idle, SLEEPING, is_preempted=True)
    assert scheduler.entry(main)["state"] == STATE["BP_THREAD_RUNNABLE"]
    scheduler.later(500)
    scheduler.wake(main)  # finds it on the run queue
    scheduler.later(500)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (0, 1000) and event["task_state"] == 0
    assert times(scheduler.wait(main, 300, 40)[0]) == (300, 40), "that wake-up is over"


def test_only_the_first_wake_up_counts(scheduler: Scheduler, main: Task) -> None:
    scheduler.switch(main, scheduler.idle, SLEEPING)
    for _ in range(3):
        scheduler.later(100)
        scheduler.wake(main)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (100, 200)


def test_a_wait_whose_wake_up_was_not_seen_was_blocked_throughout(scheduler: Scheduler, main: Task) -> None:
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(100)
    assert times(scheduler.switch(scheduler.idle, main)[0]) == (100, 0)


def test_woken_before_it_has_left(scheduler: Scheduler, main: Task) -> None:
    """It is off the run queue and not yet off the CPU: it is runnable as soon as it has left."""
    scheduler.later(1000, main)
    main.on_rq = False
    scheduler.wake(main, cpu=1)
    scheduler.later(10, main)
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(700)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (0, 700) and event["on_cpu_ns"] == 1010
    assert times(scheduler.wait(main, 300, 40)[0]) == (300, 40), "that wake-up is over"


def test_woken_before_it_has_left_and_then_preempted(scheduler: Scheduler, main: Task) -> None:
    scheduler.later(1000, main)
    main.on_rq = False
    scheduler.wake(main, cpu=1)
    scheduler.switch(main, scheduler.idle)
    scheduler.later(10)
    scheduler.switch(scheduler.idle, main)
    assert times(scheduler.wait(main, 300, 40)[0]) == (300, 40)


def test_a_wake_up_while_it_runs_is_no_wake_up(scheduler: Scheduler, main: Task) -> None:
    scheduler.later(1000, main)
    scheduler.wake(main, cpu=1)
    scheduler.later(1000, main)
    assert times(scheduler.wait(main, 300, 40)[0]) == (300, 40)


def test_woken_while_it_leaves_and_stays_on_the_run_queue(scheduler: Scheduler, main: Task) -> None:
    """Nothing else wakes it, so that wake-up was of this wait; see DELAY_DEQUEUE in sched_waking()."""
    scheduler.later(1000, main)
    scheduler.wake(main, cpu=1)
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(700)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert times(event) == (0, 700) and event["task_state"] == SLEEPING
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(100)
    assert times(scheduler.switch(scheduler.idle, main)[0]) == (100, 0), "that wake-up is over"


def test_a_wake_up_before_it_was_preempted_is_not_of_a_later_wait(scheduler: Scheduler, main: Task) -> None:
    scheduler.wake(main, cpu=1)
    scheduler.switch(main, scheduler.idle)
    scheduler.switch(scheduler.idle, main)
    scheduler.switch(main, scheduler.idle, SLEEPING)
    scheduler.later(100)
    assert times(scheduler.switch(scheduler.idle, main)[0]) == (100, 0)


def test_a_wait_that_began_before_it_was_watched(scheduler: Scheduler, host: Host) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    sleeper = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"])
    sleeper.on_rq = False
    scheduler.later(300)
    scheduler.wake(sleeper)
    sleeper.on_rq = True
    scheduler.later(50)
    (event,) = scheduler.switch(scheduler.idle, sleeper)
    assert event["kind"] == WAIT and times(event) == (300, 50), "however short it was"
    assert kinds(scheduler.wait(sleeper, 300, 50)) == []


def test_a_thread_of_which_nothing_is_known_was_runnable(scheduler: Scheduler, host: Host) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    waiting = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"])
    scheduler.later(300)
    (event,) = scheduler.switch(scheduler.idle, waiting)
    assert event["kind"] == WAIT and times(event) == (0, 300)


def test_a_thread_that_ran_since_it_is_watched(scheduler: Scheduler) -> None:
    running = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"], exec_ns=77)
    running.exec_ns = 77
    scheduler.later(900, running)
    (event,) = scheduler.wait(running, 100, 20)
    assert times(event) == (100, 20) and event["on_cpu_ns"] == 900


def test_an_unknown_thread_that_slept_and_was_not_seen_coming(scheduler: Scheduler) -> None:
    for tid, wakes in ((TID, True), (TID + 1, False)):
        sleeper = scheduler.add(tid, state=STATE["BP_THREAD_UNKNOWN"])
        sleeper.on_rq = False
        scheduler.later(700_000_000)
        if wakes:
            scheduler.wake(sleeper)
        scheduler.later(50)
        sleeper.queued_ns = 50
        sleeper.run_delay_ns += 50
        scheduler.later(900, sleeper)
        (event,) = scheduler.switch(sleeper, scheduler.idle, SLEEPING)
        entry = scheduler.entry(sleeper)
        assert event["kind"] == WAIT and entry["stolen_ns"] == 0 and entry["on_cpu_ns"] == 900
        assert (entry["blocked_ns"], entry["runqueue_ns"]) == (700_000_000, 50)


def test_a_wake_up_while_an_unknown_thread_runs_is_no_wake_up(scheduler: Scheduler) -> None:
    running = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"])
    scheduler.later(900, running)
    scheduler.wake(running, cpu=1)  # it is on the run queue: there is no wait to end
    scheduler.later(900, running)
    (event,) = scheduler.wait(running, 100, 20)
    assert times(event) == (100, 20)


def test_an_unknown_thread_that_is_woken_before_it_has_left(scheduler: Scheduler) -> None:
    running = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"])
    scheduler.later(900, running)
    running.on_rq = False
    scheduler.wake(running, cpu=1)
    running.on_rq = True
    scheduler.switch(running, scheduler.idle, SLEEPING)
    scheduler.later(700)
    (event,) = scheduler.switch(scheduler.idle, running)
    assert times(event) == (0, 700) and event["on_cpu_ns"] == 900
    assert times(scheduler.wait(running, 300, 40)[0]) == (300, 40), "that wake-up is over"


def test_an_unknown_thread_that_waits_for_a_cpu_is_not_woken(scheduler: Scheduler) -> None:
    waiting = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"])
    scheduler.later(300)
    scheduler.wake(waiting)  # finds it on the run queue
    scheduler.later(50)
    (event,) = scheduler.switch(scheduler.idle, waiting)
    assert times(event) == (0, 350)


@pytest.mark.skipif(kernel_version_code() < 6 << 16 | 12 << 8, reason="who sleeps leaves the run queue at once")
def test_an_unknown_thread_that_sleeps_on_the_run_queue_is_woken(scheduler: Scheduler) -> None:
    """The scheduler counts such a sleep as time in the run queue."""
    sleeper = scheduler.add(TID, state=STATE["BP_THREAD_UNKNOWN"])
    sleeper.is_delayed = True
    scheduler.later(300_000_000)
    scheduler.wake(sleeper)
    sleeper.is_delayed = False
    scheduler.later(50)
    sleeper.queued_ns = 300_000_050
    (event,) = scheduler.switch(scheduler.idle, sleeper)
    assert times(event) == (300_000_000, 50)
    scheduler.later(10, sleeper)
    scheduler.switch(sleeper, scheduler.idle, SLEEPING)
    assert scheduler.entry(sleeper)["runqueue_ns"] == 50


def waits(scheduler: Scheduler, task: Task, *lengths: tuple[int, int], state: int = SLEEPING) -> Events:
    """Events of waits of these lengths (blocked, run queue)."""
    found = [scheduler.wait(task, *length, state=state) for length in lengths]
    return np.concatenate(found)


def test_short_waits_are_added_up(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    main.call(READ, 5)
    assert not len(waits(scheduler, main, (10, 1), (MIN_BLOCK_NS - 1, 0), (MIN_BLOCK_NS - 20, 19)))
    expected = (3, 2 * MIN_BLOCK_NS - 11, 20)
    assert open_sums(scheduler, main) == {(READ, SLEEPING, 0, 5): expected}
    (event,) = waits(scheduler, main, (MIN_BLOCK_NS - 1, 1))
    assert event["kind"] == WAIT, "what counts is the time from a CPU to a CPU"
    assert open_sums(scheduler, main) == {(READ, SLEEPING, 0, 5): expected}
    assert scheduler.entry(main)["wait_count"] == 4


# What kind a wait is of: (call, first argument, state).
@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ((READ, 5, 1), (READ, 5, 1), True),
        ((READ, 5, 1), (WRITE, 5, 1), False),
        ((READ, 5, 1), (READ, 6, 1), False),
        ((READ, 5, 1), (READ, 5, 2), False),
        ((READ, 5, 1), (READ, 5, 0), False),
        ((READ, 0xFFFF, 1), (READ, 0x10000, 1), False),
        ((FUTEX, 0x10000, 1), (FUTEX, 0x7FFF_0000_1234, 1), True),
        ((FUTEX, 0x10000, 1), (FUTEX, 0, 1), True),
        ((-1, 5, 1), (-1, 6, 1), True),
        ((-1, 5, 1), (READ, 5, 1), False),
        ((-1, 5, 1), (0x7FFE, 5, 1), False),
        ((-1, 5, 1), (0x7FFF, 5, 1), True),  # no number of a call
    ],
)
def test_kinds_of_short_waits(
    scheduler: Scheduler, host: Host, main: Task, one: Sequence[int], other: Sequence[int], is_same: bool
) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    for number, arg, state in (one, other):
        main.call(number % (1 << 64), arg)
        assert not len(scheduler.wait(main, 20, 3, state))
    assert [count for count, _, _ in open_sums(scheduler, main).values()] == ([2] if is_same else [1, 1])


def test_a_fifth_kind_sends_the_oldest_sum(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    for fd in range(SHORT_KINDS):
        main.call(READ, fd)
        assert not len(waits(scheduler, main, *[(10, 1)] * (fd + 1)))
    for fd in range(SHORT_KINDS, 3 * SHORT_KINDS):
        main.call(READ, fd)
        (event,) = scheduler.wait(main, 100, 7, UNINTERRUPTIBLE)
        assert (event["kind"], event["tid"], event["tgid"]) == (SHORT, TID, TGID)
        assert event["time_ns"] == scheduler.now and event["syscall"] == READ and event["flags"] == 0
        old, count = fd - SHORT_KINDS, fd + 1 - SHORT_KINDS
        if old < SHORT_KINDS:
            assert event["args"].tolist() == [old, count, 0]
            assert times(event) == (10 * count, count) and event["task_state"] == SLEEPING
        else:
            assert event["args"].tolist() == [old, 1, 0]
            assert times(event) == (100, 7) and event["task_state"] == UNINTERRUPTIBLE
    assert len(open_sums(scheduler, main)) == SHORT_KINDS


def test_the_end_of_a_thread_sends_its_sums_and_totals(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    for fd in (3, 4):
        main.call(READ, fd)
        waits(scheduler, main, (10, 1), (20, 2))
    scheduler.later(900, main)
    events = scheduler.switch(main, scheduler.idle, DEAD)
    assert kinds(events) == [SHORT, SHORT, EXIT_EVENT]
    assert [times(event) for event in events] == [(30, 3), (30, 3), (60, 6)]
    assert [int(event["args"][0]) for event in events[:-1]] == [3, 4]
    assert events[-1]["args"].tobytes().startswith(b"host\0"), "its name"
    assert (events[-1]["on_cpu_ns"], events[-1]["stolen_ns"], events[-1]["time_ns"]) == (900, 0, scheduler.now)
    assert open_sums(scheduler, main) == {}
    assert host.thread(TID) is not None
    scheduler.free(main)
    assert host.thread(TID) is None


def test_time_the_hypervisor_took(scheduler: Scheduler, main: Task) -> None:
    scheduler.later(1_000_000)
    main.exec_ns += 600_000
    (event,) = scheduler.wait(main, 100)
    assert (event["on_cpu_ns"], event["stolen_ns"]) == (600_000, 400_000)
    scheduler.later(1_000_000, main)
    (event,) = scheduler.wait(main, 100)
    assert (event["on_cpu_ns"], event["stolen_ns"]) == (1_600_000, 0)


def test_small_differences_of_two_clocks_are_kept_until_they_are_more(scheduler: Scheduler, main: Task) -> None:
    limit = CONSTANTS["BP_STOLEN_MIN_NS"]
    stolen = []
    for _ in range(4):
        scheduler.later(1_000_000)
        main.exec_ns += 1_000_000 - limit // 2
        (event,) = scheduler.wait(main, 100)
        stolen.append(int(event["stolen_ns"]))
    assert stolen == [0, 0, limit // 2 * 3, 0], "half of the limit each time: the third one is beyond it"


def test_a_thread_that_ran_before_the_switch(scheduler: Scheduler, main: Task) -> None:
    """The scheduler counts an idle CPU's way to the switch as running: it is taken off the wait before."""
    scheduler.wait(main, 1000, 50_000)
    scheduler.later(1_000)
    main.exec_ns += 16_000
    scheduler.switch(main, scheduler.idle, SLEEPING)
    assert scheduler.entry(main)["early_ns"] == 15_000 and scheduler.entry(main)["runqueue_ns"] == 35_000
    scheduler.later(100)
    scheduler.wake(main)
    (event,) = scheduler.switch(scheduler.idle, main)
    assert (event["early_ns"], event["on_cpu_ns"]) == (15_000, 16_000) and times(event) == (100, 0)
    main.exec_ns += 999  # more than it waited for a CPU
    (event,) = scheduler.wait(main, 100)
    assert (event["early_ns"], event["on_cpu_ns"]) == (0, 16_000)


def test_a_thread_that_ran_before_the_switch_after_a_short_wait(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    main.call(READ, 5)
    waits(scheduler, main, (1000, 2000), (1000, 2000))
    main.exec_ns += 1500
    scheduler.switch(main, scheduler.idle, SLEEPING)
    assert open_sums(scheduler, main) == {(READ, SLEEPING, 0, 5): (2, 2000, 2500)}
    assert scheduler.entry(main)["early_ns"] == 0


def test_the_end_of_a_thread_tells_how_early_it_ran(scheduler: Scheduler, main: Task) -> None:
    """What is to be taken off the last row of the thread: the exit is the last chance to say it."""
    scheduler.wait(main, 1000, 50_000)
    main.exec_ns += 15_000
    events = scheduler.switch(main, scheduler.idle, DEAD)
    assert (events[-1]["runqueue_ns"], events[-1]["on_cpu_ns"]) == (35_000, 15_000)
    assert events[-1]["early_ns"] == 15_000


def test_the_way_to_a_run_queue_is_a_part_of_the_wait(scheduler: Scheduler, main: Task) -> None:
    """The scheduler's run delay is less than the time since the wake-up: told with the next wait, and at the end."""
    main.queued_ns = 30_000
    scheduler.wait(main, 1000, 50_000)
    scheduler.later(1_000, main)
    (event,) = scheduler.wait(main, 100, 31_000)
    assert (event["enqueue_ns"], event["early_ns"]) == (20_000, 0) and times(event) == (100, 31_000)
    assert times(scheduler.entry(main)) == (21_100, 61_000)
    events = scheduler.switch(main, scheduler.idle, DEAD)
    assert events[-1]["enqueue_ns"] == 1_000 and times(events[-1]) == (22_100, 60_000)


def test_of_what_ran_early_only_the_rest_is_the_way_to_a_run_queue(scheduler: Scheduler, main: Task) -> None:
    main.queued_ns = 0
    scheduler.wait(main, 1000, 50_000)
    main.exec_ns += 15_000
    (event,) = scheduler.wait(main, 100)
    assert (event["early_ns"], event["enqueue_ns"]) == (15_000, 35_000)
    assert times(scheduler.entry(main)) == (36_100, 0)


def test_the_way_to_a_run_queue_of_a_short_wait(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_config(0, min_block_ns=MIN_BLOCK_NS)
    main.call(READ, 5)
    main.queued_ns = 1500
    waits(scheduler, main, (1000, 2000), (1000, 2000))
    scheduler.switch(main, scheduler.idle, SLEEPING)
    assert open_sums(scheduler, main) == {(READ, SLEEPING, 0, 5): (2, 3000, 3000)}
    assert scheduler.entry(main)["enqueue_ns"] == 0


@pytest.mark.parametrize("is_preempted", [False, True])
def test_what_never_slept_has_no_way_to_a_run_queue(scheduler: Scheduler, main: Task, is_preempted: bool) -> None:
    main.queued_ns = 0
    scheduler.switch(main, scheduler.idle, SLEEPING if is_preempted else 0, is_preempted)
    scheduler.later(1000)
    scheduler.switch(scheduler.idle, main)
    (event,) = scheduler.wait(main, 100)
    assert event["enqueue_ns"] == 0 and times(scheduler.entry(main)) == (100, 1000)


def test_a_recording_that_is_over_leaves_threads_as_they_are(scheduler: Scheduler, host: Host, main: Task) -> None:
    asleep, ready = scheduler.add(2000), scheduler.add(2001)
    scheduler.switch(asleep, scheduler.idle, SLEEPING)
    scheduler.switch(ready, scheduler.idle)
    before = [scheduler.entry(task).tobytes() for task in (main, asleep, ready)]
    host.set_config(CONFIG["BP_CONFIG_STOPPED"] | CONFIG["BP_CONFIG_OFF_CPU_STACKS"])
    scheduler.later(1000, main)
    events = [scheduler.switch(main, ready, SLEEPING), scheduler.wake(asleep), scheduler.switch(ready, asleep)]
    events += [scheduler.wake(main), scheduler.switch(asleep, main, DEAD)]
    assert not len(np.concatenate(events))
    assert [scheduler.entry(task).tobytes() for task in (main, asleep, ready)] == before


def test_arguments_of_an_earlier_call_are_not_shown_with_a_wait_in_none(scheduler: Scheduler, main: Task) -> None:
    main.call(READ, 5, 6, 7)
    scheduler.wait(main, 100)
    main.in_user_mode()  # a page fault
    (event,) = scheduler.wait(main, 100)
    assert event["syscall"] == -1 and event["args"].tolist() == [0, 0, 0]


def test_all_that_is_known_of_a_wait_is_in_its_event(scheduler: Scheduler) -> None:
    known = {name: 3 + place for place, name in enumerate(OF_WAITS)}  # each another number
    blocked = scheduler.add(TID, state=STATE["BP_THREAD_BLOCKED"], **known)
    scheduler.later(300)
    scheduler.wake(blocked)
    (event,) = scheduler.switch(scheduler.idle, blocked)
    assert {name: int(event[name]) for name in known} == known
