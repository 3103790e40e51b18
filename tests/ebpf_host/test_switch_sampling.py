"""Which switches have a stack; waits without one are added up unless they are long."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from bpfprof.abi.dtypes import EVENT_DTYPE
from tests.ebpf_host.host import CONFIG, CONSTANTS, PROCESS, STATUS, TID, Host
from tests.ebpf_host.scheduler import (
    CLOCK_NANOSLEEP,
    EPOLL_WAIT,
    FUTEX,
    GIL,
    SLEEPING,
    WAKER,
    Scheduler,
    Task,
)
from tests.ebpf_host.test_scheduler import MIN_BLOCK_NS, WAIT, kinds, open_sums, times, waits

INTERVAL_NS, LONG_NS = 2_000_000, CONSTANTS["BP_LONG_WAIT_NS"]
OFF_CPU, WAKERS = CONFIG["BP_CONFIG_OFF_CPU_STACKS"], CONFIG["BP_CONFIG_WAKERS"]
GIL_ADDRESS = 0x5555_7000_0000
SAVED, KEPT_FOR_WAITS, MOST_HALVINGS = 50, 25, 15  # ebpf/switch_sampling.bpf.h
UNSAMPLED = int(GIL["BP_UNSAMPLED"])
SWITCHES = 20_000
# A sum of independent terms is further than so many standard deviations from its mean less than once in 100,000 times.
DEVIATIONS = 4.5


@pytest.fixture
def task(scheduler: Scheduler, host: Host) -> Task:
    """A thread in epoll_wait() that has not been switched yet."""
    host.set_config(OFF_CPU, min_block_ns=MIN_BLOCK_NS, stack_interval_ns=INTERVAL_NS)
    host.set_process(0)
    return scheduler.add(TID).call(EPOLL_WAIT, 4)


def switches(scheduler: Scheduler, task: Task, gaps_ns: Iterable[int], state: int = SLEEPING) -> list[int]:
    """For each switch `one_in`, 0 if it has no stack; `gaps_ns` is from each switch to the next."""
    found = []
    for gap_ns in gaps_ns:
        scheduler.switch(task, scheduler.idle, state)
        entry = scheduler.entry(task)
        assert (entry["one_in"] == 0) == (entry["status"] == STATUS.BP_NOT_SAMPLED)
        found.append(int(entry["one_in"]))
        scheduler.later(gap_ns // 2)
        scheduler.switch(scheduler.idle, task)
        scheduler.later(gap_ns - gap_ns // 2, task)
    return found


def test_the_first_switches_of_a_thread_have_a_stack(scheduler: Scheduler, task: Task) -> None:
    found = switches(scheduler, task, [1000] * 100)
    assert found[: SAVED + 1] == [1] * (SAVED + 1) and 0 in found


@pytest.mark.parametrize("gap_ns", [INTERVAL_NS, 10 * INTERVAL_NS])
def test_all_have_a_stack_that_are_an_interval_apart(scheduler: Scheduler, task: Task, gap_ns: int) -> None:
    assert set(switches(scheduler, task, [gap_ns] * 1000)) == {1}


def test_bursts_with_pauses_have_all_stacks(scheduler: Scheduler, task: Task) -> None:
    burst = [1000] * (SAVED - 1) + [SAVED * INTERVAL_NS]
    assert set(switches(scheduler, task, burst * 50)) == {1}


def test_what_was_saved_comes_back_after_a_pause(scheduler: Scheduler, task: Task) -> None:
    """However many switches there were before it."""
    switches(scheduler, task, [1000] * SWITCHES + [(SAVED + MOST_HALVINGS + 1) * INTERVAL_NS])
    assert switches(scheduler, task, [1000] * (SAVED + 1)) == [1] * (SAVED + 1)


def test_every_switch_has_a_stack_without_an_interval(scheduler: Scheduler, host: Host, task: Task) -> None:
    host.set_config(OFF_CPU, min_block_ns=MIN_BLOCK_NS)
    assert set(switches(scheduler, task, [0, 1, 1000] * 100)) == {1}


@pytest.mark.second_tier
@pytest.mark.parametrize("gap_ns", [10, 20_000, 300_000, 1_000_000, INTERVAL_NS - 1000])
def test_about_one_stack_an_interval_however_many_switches(scheduler: Scheduler, task: Task, gap_ns: int) -> None:
    """Never more than were saved and are due; and no fewer, but for the most that a thread can be ahead."""
    found = switches(scheduler, task, [gap_ns] * SWITCHES)
    due, chosen = SWITCHES * gap_ns / INTERVAL_NS, sum(n > 0 for n in found)
    assert due <= chosen <= due + SAVED + MOST_HALVINGS + 1


def test_preemptions_leave_stacks_for_waits(scheduler: Scheduler, task: Task) -> None:
    """However many there are; as long as the waits are no more than an interval apart."""
    found = []
    for _ in range(50):
        switches(scheduler, task, [10_000] * 400, state=0)
        found += switches(scheduler, task, [10_000])
    assert found == [1] * 50


@pytest.mark.second_tier
@pytest.mark.parametrize("gap_ns", [20_000, INTERVAL_NS // 2])
def test_about_one_preemption_an_interval_has_a_stack(scheduler: Scheduler, task: Task, gap_ns: int) -> None:
    found = switches(scheduler, task, [gap_ns] * SWITCHES, state=0)
    due, chosen = SWITCHES * gap_ns / INTERVAL_NS, sum(n > 0 for n in found)
    assert due - KEPT_FOR_WAITS <= chosen <= due + SAVED - KEPT_FOR_WAITS + MOST_HALVINGS + 1
    assert abs(sum(found) - SWITCHES) < DEVIATIONS * math.sqrt(sum(n * (n - 1) for n in found)) + 1


@pytest.mark.second_tier
@pytest.mark.parametrize("longest_ns", [50_000, 500_000, 4 * INTERVAL_NS])
def test_what_was_chosen_stands_for_all(scheduler: Scheduler, task: Task, longest_ns: int) -> None:
    """The estimate of how many switches there were, from chosen ones alone, is right whatever the gaps are.

    Its error is a sum of martingale differences: n - 1 with probability 1 / n, else -1. Each has a variance of n - 1,
    which chosen switches estimate by n * (n - 1).
    """
    gaps = np.exp(np.random.default_rng(7).uniform(math.log(10_000), math.log(longest_ns), SWITCHES)).astype(int)
    found = switches(scheduler, task, gaps.tolist())
    assert abs(sum(found) - SWITCHES) < DEVIATIONS * math.sqrt(sum(n * (n - 1) for n in found)) + 1


def test_waits_without_a_stack_are_added_up(scheduler: Scheduler, task: Task) -> None:
    events = []
    for _ in range(1000):
        scheduler.later(50_000, task)
        events.append(scheduler.wait(task, 150_000, 50_000))
    found = np.concatenate(events)
    assert set(kinds(found)) == {WAIT} and {1, 8} < set(found["one_in"].tolist())
    count = 1000 - len(found)
    assert open_sums(scheduler, task) == {
        (EPOLL_WAIT, SLEEPING, UNSAMPLED, 4): (count, count * 150_000, count * 50_000)
    }
    totals = scheduler.entry(task)
    assert times(totals) == (150_000_000, 50_000_000) and totals["wait_count"] == 1000


def next_unsampled(scheduler: Scheduler, task: Task) -> None:
    """The task leaves the CPU without a stack, after some switches that have one or not."""
    while True:
        scheduler.later(1000, task)
        scheduler.switch(task, scheduler.idle, SLEEPING)
        if scheduler.entry(task)["status"] == STATUS.BP_NOT_SAMPLED:
            return
        scheduler.switch(scheduler.idle, task)


@pytest.mark.parametrize("blocked_ns", [LONG_NS - 20, LONG_NS])
def test_a_long_wait_has_an_event_and_a_waker(scheduler: Scheduler, host: Host, task: Task, blocked_ns: int) -> None:
    """Its waker was noted if it was that long already when it was woken."""
    host.set_config(OFF_CPU | WAKERS, min_block_ns=MIN_BLOCK_NS, stack_interval_ns=INTERVAL_NS)
    next_unsampled(scheduler, task)
    scheduler.later(blocked_ns)
    scheduler.wake(task)
    scheduler.later(20)
    (event,) = scheduler.switch(scheduler.idle, task)
    assert (event["kind"], event["status"], event["one_in"]) == (WAIT, STATUS.BP_NOT_SAMPLED, 0)
    assert (event["waker_kind"] != WAKER["BP_WAKER_UNKNOWN"]) == (blocked_ns == LONG_NS)


def test_a_wait_that_was_not_chosen_has_no_waker(scheduler: Scheduler, host: Host, task: Task) -> None:
    host.set_config(OFF_CPU | WAKERS, min_block_ns=MIN_BLOCK_NS, stack_interval_ns=INTERVAL_NS)
    next_unsampled(scheduler, task)
    scheduler.later(200_000)
    scheduler.wake(task)
    assert scheduler.entry(task)["waker_kind"] == WAKER["BP_WAKER_UNKNOWN"]
    assert kinds(scheduler.switch(scheduler.idle, task)) == []


def test_a_wait_for_the_gil_is_known_without_a_stack(scheduler: Scheduler, host: Host, task: Task) -> None:
    host.set_process(PROCESS["BP_PROCESS_PYTHON"], gil=GIL_ADDRESS, gil_bytes=128)
    for futex, flags in ((GIL_ADDRESS + 64, int(GIL["BP_WAITS_FOR_GIL"])), (GIL_ADDRESS + 128, 0)):
        task.call(FUTEX, futex)
        next_unsampled(scheduler, task)
        assert scheduler.entry(task)["flags"] == flags
        scheduler.later(200_000)
        scheduler.switch(scheduler.idle, task)
        assert (FUTEX, SLEEPING, flags | UNSAMPLED, 0) in open_sums(scheduler, task)


def test_short_waits_without_a_stack_are_still_short(scheduler: Scheduler, task: Task) -> None:
    """BP_UNSAMPLED says that the waits were not short."""
    task.call(CLOCK_NANOSLEEP, 0)
    waits(scheduler, task, *[(1000, 10)] * 60)
    short = [kind for kind in open_sums(scheduler, task) if kind[0] == CLOCK_NANOSLEEP]
    assert short == [(CLOCK_NANOSLEEP, SLEEPING, 0, 0)]


def test_a_process_leaves_room_for_the_events_of_others(scheduler: Scheduler, host: Host) -> None:
    """What it has no room for is added up, with all its time; a fifth kind joins one of the others, as unknown."""
    host.set_config(OFF_CPU, min_block_ns=MIN_BLOCK_NS)
    host.set_process(0)
    task = scheduler.add(TID).call(EPOLL_WAIT, 4)
    size, ring, one = CONSTANTS["BP_STACK_RING_BYTES"], host.state.events, EVENT_DTYPE.itemsize
    long = [(LONG_NS, 1000)]
    ring.waiting = size // 2 - 1
    assert len(waits(scheduler, task, *long * 5)) == 5, "in the first half nothing is counted"
    ring.waiting, lost = size - 3 * one, host.counter("BP_LOST_EVENT_RING_FULL")
    assert len(waits(scheduler, task, *long * 11)) == 1 + 3, "the first one finds it so"
    assert open_sums(scheduler, task) == {(EPOLL_WAIT, SLEEPING, UNSAMPLED, 4): (7, 7 * LONG_NS, 7 * 1000)}
    for descriptor in range(5, 5 + 6):  # more kinds than sums
        assert not len(waits(scheduler, task.call(EPOLL_WAIT, descriptor), (1000, 0)))
    sums = open_sums(scheduler, task)
    assert len(sums) == 4 and sum(blocked for _, blocked, _ in sums.values()) == 7 * LONG_NS + 6 * 1000
    assert [key for key in sums if key[0] < 0] == [(-1, SLEEPING, UNSAMPLED, 0)]
    assert host.counter("BP_LOST_EVENT_RING_FULL") == lost
    ring.since += one  # the reader was there
    assert len(waits(scheduler, task.call(EPOLL_WAIT, 4), *long)) == 1
    ring.waiting = ring.since = 0
