"""More switches than are wanted: some are chosen for a stack, the others are added up unless they are long."""

from __future__ import annotations

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
    Events,
    Scheduler,
    Task,
)
from tests.ebpf_host.test_scheduler import MIN_BLOCK_NS, WAIT, kinds, open_sums, times, waits

WINDOW_NS, OWN = CONSTANTS["BP_RATE_WINDOW_NS"], CONSTANTS["BP_THREAD_STACKS"]
SLOW_NS, LONG_NS = CONSTANTS["BP_SLOW_WAIT_NS"], CONSTANTS["BP_LONG_WAIT_NS"]
GIL_ADDRESS = 0x5555_7000_0000
UNSAMPLED = int(GIL["BP_UNSAMPLED"])


def rate_test(scheduler: Scheduler, host: Host, per_window: int, wanted: int, windows: int) -> tuple[Events, Task]:
    """Waits of 200 us, so many in each window; their events."""
    host.set_config(CONFIG["BP_CONFIG_OFF_CPU_STACKS"], min_block_ns=MIN_BLOCK_NS, max_switches=wanted)
    host.set_process(0)
    task = scheduler.add(TID)
    task.call(EPOLL_WAIT, 4)
    found = []
    for _ in range(per_window * windows):
        scheduler.later(WINDOW_NS // per_window - 200_000, task)
        found.append(scheduler.wait(task, 150_000, 50_000))
    return np.concatenate(found), task


def test_fewer_switches_than_are_wanted_all_have_an_event(scheduler: Scheduler, host: Host) -> None:
    events, task = rate_test(scheduler, host, per_window=100, wanted=200, windows=4)
    assert kinds(events) == [WAIT] * 400 and open_sums(scheduler, task) == {}


@pytest.mark.parametrize(("wanted", "one_in"), [(40, 3), (90, 2), (20, 7)])
def test_beyond_the_rate_one_in_some_has_an_event(scheduler: Scheduler, host: Host, wanted: int, one_in: int) -> None:
    events, task = rate_test(scheduler, host, per_window=100, wanted=wanted, windows=10)
    chosen = int((events["kind"] == WAIT).sum())
    others = 100 - OWN
    assert chosen == pytest.approx(100 + 9 * (OWN + others / one_in), abs=35), "the first window is measured"
    assert set(kinds(events)) == {WAIT}
    assert (events["one_in"] > 0).sum() == chosen - 10 * OWN, "the others are certain"
    assert set(events["one_in"][-100:].tolist()) == {0, one_in}
    sums = open_sums(scheduler, task)
    count = 1000 - chosen
    kind = (EPOLL_WAIT, SLEEPING, UNSAMPLED, 4)
    assert sums == {kind: (count, count * 150_000, count * 50_000)}
    totals = scheduler.entry(task)
    assert times(totals) == (150_000_000, 50_000_000) and totals["wait_count"] == 1000


def test_of_very_many_switches_fewer_have_a_stack(scheduler: Scheduler, host: Host) -> None:
    """A quarter of what is wanted at the least: switches without a stack cost time too."""
    host.set_config(CONFIG["BP_CONFIG_OFF_CPU_STACKS"], min_block_ns=0, max_switches=100)
    host.set_process(0)
    task = scheduler.add(TID)
    for per_window, wanted in ((320, 80), (1600, 25)):
        found = []
        for _ in range(3 * per_window):
            scheduler.later(WINDOW_NS // per_window - 1000, task)
            found.append(scheduler.wait(task, 1000))
        one_in = 1 + (per_window - OWN) // wanted
        assert set(np.concatenate(found[-per_window // 2 :])["one_in"].tolist()) <= {0, one_in, one_in - 1}


def test_a_rate_of_long_ago_says_nothing(scheduler: Scheduler, host: Host) -> None:
    _, task = rate_test(scheduler, host, per_window=100, wanted=20, windows=3)
    scheduler.later(5 * WINDOW_NS, task)
    found = [scheduler.wait(task, 150_000) for _ in range(50)]
    assert kinds(np.concatenate(found)) == [WAIT] * 50


def test_each_cpu_has_a_rate_of_its_own(scheduler: Scheduler, host: Host) -> None:
    _, task = rate_test(scheduler, host, per_window=100, wanted=20, windows=3)
    for _ in range(20 + OWN):
        scheduler.switch(task, scheduler.idle, SLEEPING, cpu=1)
        scheduler.later(200_000)
        assert kinds(scheduler.switch(scheduler.idle, task)) == [WAIT]


def is_chosen(scheduler: Scheduler, task: Task) -> bool:
    return bool(scheduler.entry(task)["status"] != STATUS.BP_NOT_SAMPLED)


def test_the_first_of_each_thread_have_a_stack(scheduler: Scheduler, host: Host) -> None:
    """However many switches there are, and in each window anew."""
    rate_test(scheduler, host, per_window=400, wanted=1, windows=2)
    tasks = [scheduler.add(TID + number) for number in (1, 2, 3)]
    for _ in range(2):
        for task in tasks:
            found = [kinds(scheduler.wait(task, 150_000)) for _ in range(3 * OWN)]
            assert found[:OWN] == [[WAIT]] * OWN and found[OWN:].count([]) > OWN
        scheduler.later(WINDOW_NS, *tasks)


@pytest.mark.parametrize("blocked_ns", [LONG_NS - 20, LONG_NS])
def test_a_long_wait_has_an_event_and_a_waker(scheduler: Scheduler, host: Host, blocked_ns: int) -> None:
    """Its waker was noted if it was that long already when it was woken."""
    _, task = rate_test(scheduler, host, per_window=400, wanted=1, windows=2)
    flags = CONFIG["BP_CONFIG_OFF_CPU_STACKS"] | CONFIG["BP_CONFIG_WAKERS"]
    host.set_config(flags, min_block_ns=MIN_BLOCK_NS, max_switches=1)
    for _ in range(20):
        waits(scheduler, task, *[(150_000, 10)] * (2 * OWN))
        scheduler.switch(task, scheduler.idle, SLEEPING)
        chosen = is_chosen(scheduler, task)
        scheduler.later(blocked_ns)
        scheduler.wake(task)
        scheduler.later(20)
        (event,) = scheduler.switch(scheduler.idle, task)
        assert (event["kind"], event["blocked_ns"]) == (WAIT, blocked_ns)
        assert event["status"] == (STATUS.BP_NO_PYTHON if chosen else STATUS.BP_NOT_SAMPLED)
        assert (event["one_in"] > 1) == chosen
        has_waker = event["waker_kind"] != WAKER["BP_WAKER_UNKNOWN"]
        assert has_waker == (chosen or blocked_ns == LONG_NS)


def test_after_a_slow_wait_the_next_one_has_a_stack(scheduler: Scheduler, host: Host) -> None:
    _, task = rate_test(scheduler, host, per_window=400, wanted=1, windows=2)
    for blocked_ns in (SLOW_NS, SLOW_NS - 1):
        chosen = []
        for _ in range(30):
            waits(scheduler, task, *[(150_000, 0)] * (2 * OWN))
            scheduler.wait(task, blocked_ns)
            scheduler.switch(task, scheduler.idle, SLEEPING)
            chosen.append((is_chosen(scheduler, task), int(scheduler.entry(task)["one_in"])))
            scheduler.later(150_000)
            scheduler.switch(scheduler.idle, task)
        assert (set(chosen) == {(True, 0)}) == (blocked_ns == SLOW_NS)


def test_a_wait_for_the_gil_is_known_without_a_stack(scheduler: Scheduler, host: Host) -> None:
    _, task = rate_test(scheduler, host, per_window=400, wanted=1, windows=2)
    host.set_process(PROCESS["BP_PROCESS_PYTHON"], gil=GIL_ADDRESS, gil_bytes=128)
    for futex, flags in ((GIL_ADDRESS + 64, int(GIL["BP_WAITS_FOR_GIL"])), (GIL_ADDRESS + 128, 0)):
        task.call(FUTEX, futex)
        found = set()
        for _ in range(4 * OWN):
            scheduler.switch(task, scheduler.idle, SLEEPING)
            if not is_chosen(scheduler, task):
                found.add(int(scheduler.entry(task)["flags"]))
            scheduler.later(200_000)
            scheduler.switch(scheduler.idle, task)
        assert found == {flags}
        assert (FUTEX, SLEEPING, flags | UNSAMPLED, 0) in open_sums(scheduler, task)


def test_a_wait_that_was_not_chosen_has_no_waker(scheduler: Scheduler, host: Host) -> None:
    _, task = rate_test(scheduler, host, per_window=100, wanted=20, windows=3)
    flags = CONFIG["BP_CONFIG_OFF_CPU_STACKS"] | CONFIG["BP_CONFIG_WAKERS"]
    host.set_config(flags, min_block_ns=MIN_BLOCK_NS, max_switches=20)
    known = 0
    for _ in range(30 + OWN):
        scheduler.switch(task, scheduler.idle, SLEEPING)
        chosen = is_chosen(scheduler, task)
        scheduler.later(200_000)
        scheduler.wake(task)
        has_waker = scheduler.entry(task)["waker_kind"] != WAKER["BP_WAKER_UNKNOWN"]
        assert has_waker == chosen
        known += has_waker
        scheduler.switch(scheduler.idle, task)
    assert OWN < known < 30 + OWN


def test_short_waits_beyond_the_rate_are_still_short(scheduler: Scheduler, host: Host) -> None:
    """BP_UNSAMPLED says that the waits were not short."""
    _, task = rate_test(scheduler, host, per_window=100, wanted=20, windows=3)
    task.call(CLOCK_NANOSLEEP, 0)
    waits(scheduler, task, *[(1000, 10)] * 60)
    short = [kind for kind in open_sums(scheduler, task) if kind[0] == CLOCK_NANOSLEEP]
    assert short == [(CLOCK_NANOSLEEP, SLEEPING, 0, 0)]
