"""Which switches have a stack; waits without one are added up unless they are long."""

from __future__ import annotations

import math

import numpy as np
import pytest

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


def one_in(scheduler: Scheduler, task: Task, gap_ns: int) -> tuple[bool, int]:
    """Whether a switch so long after the last one has a stack, and as one in how many."""
    scheduler.later(gap_ns // 2, task)
    scheduler.switch(task, scheduler.idle, SLEEPING)
    scheduler.later(gap_ns - gap_ns // 2)
    entry = scheduler.entry(task)
    scheduler.switch(scheduler.idle, task)
    return bool(entry["status"] != STATUS.BP_NOT_SAMPLED), int(entry["one_in"])


def spend(scheduler: Scheduler, task: Task) -> None:
    """The task has used up what it had saved."""
    while one_in(scheduler, task, 10) == (True, 1):
        pass


def test_a_thread_saves_up_fifty_stacks(scheduler: Scheduler, task: Task) -> None:
    """So short waits do not keep the long one after them from having a stack."""
    spend(scheduler, task)
    for _ in range(100):
        found = [one_in(scheduler, task, gap_ns) for gap_ns in (60 * INTERVAL_NS, *[10] * 49)]
        assert found == [(True, 1)] * 50
    assert (False, 0) in [one_in(scheduler, task, 20_000) for _ in range(1000)]


def test_the_first_switch_and_those_after_a_long_gap_have_a_stack(scheduler: Scheduler, task: Task) -> None:
    assert one_in(scheduler, task, 1000) == (True, 1)
    for gap_ns in (INTERVAL_NS, INTERVAL_NS * 2 // 3 + 1, 10 * INTERVAL_NS):
        for _ in range(100):
            one_in(scheduler, task, gap_ns)
            assert one_in(scheduler, task, gap_ns) == (True, 1)


def test_every_switch_has_a_stack_without_an_interval(scheduler: Scheduler, host: Host, task: Task) -> None:
    host.set_config(OFF_CPU, min_block_ns=MIN_BLOCK_NS)
    assert {one_in(scheduler, task, gap_ns) for gap_ns in (2, 100, 10**6) * 50} == {(True, 1)}


@pytest.mark.parametrize(
    ("gap_ns", "expected"), [(1_000_000, 2), (300_000, 7), (20_000, 100), (10, 0xFFFF), (0, 0xFFFF)]
)
def test_one_in_some_after_short_gaps(scheduler: Scheduler, task: Task, gap_ns: int, expected: int) -> None:
    spend(scheduler, task)
    one_in(scheduler, task, gap_ns)  # the gap before it is another
    found = [one_in(scheduler, task, gap_ns) for _ in range(SWITCHES)]
    assert {n for is_chosen, n in found if is_chosen} <= {expected}
    assert {n for is_chosen, n in found if not is_chosen} == {0}
    chosen, mean = sum(is_chosen for is_chosen, _ in found), SWITCHES / expected
    assert abs(chosen - mean) < DEVIATIONS * math.sqrt(mean) + 1
    rate, bound = chosen / (gap_ns * SWITCHES + 1), 1.5 / INTERVAL_NS
    assert rate < bound * (1 + DEVIATIONS / math.sqrt(mean)) or chosen <= 1, "however many switches there are"


def test_what_was_chosen_stands_for_all(scheduler: Scheduler, task: Task) -> None:
    """The estimate of how many switches there were, from chosen ones alone, is right whatever the gaps are."""
    chance = np.random.default_rng(7)
    spend(scheduler, task)
    estimate = variance = 0.0
    for gap_ns in np.exp(chance.uniform(math.log(20_000), math.log(4 * INTERVAL_NS), SWITCHES)).astype(int).tolist():
        is_chosen, n = one_in(scheduler, task, gap_ns)
        estimate += n * is_chosen
        variance += max(0, round(INTERVAL_NS / gap_ns) - 1)
    assert abs(estimate - SWITCHES) < DEVIATIONS * math.sqrt(variance)


def test_waits_without_a_stack_are_added_up(scheduler: Scheduler, task: Task) -> None:
    spend(scheduler, task)
    before = times(scheduler.entry(task))
    events = []
    for _ in range(1000):
        scheduler.later(50_000, task)
        events.append(scheduler.wait(task, 150_000, 50_000))
    found = np.concatenate(events)
    assert set(kinds(found)) == {WAIT} and set(found["one_in"].tolist()) == {INTERVAL_NS // 250_000}
    count = 1000 - len(found)
    added = (count, count * 150_000, count * 50_000)
    assert open_sums(scheduler, task)[EPOLL_WAIT, SLEEPING, UNSAMPLED, 4] == added
    assert np.subtract(times(scheduler.entry(task)), before).tolist() == [150_000_000, 50_000_000]


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
