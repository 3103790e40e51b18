"""Groups of waits against answers worked out by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from bpfprof.query.wait_filter import WaitFilter, chosen_rows, task_states

from bpfprof.model.profile import HOLDER_ROW_DTYPE, WAIT_ROW_DTYPE, WaitTable
from bpfprof.query.chains import gil_waits, waker_name
from bpfprof.query.groups import GROUPINGS, group_waits
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ProfileBuilder,
    empty_profile,
    native,
    python,
    wait,
    waiting_profile,
)

ALL = WaitFilter()


def of_durations(*durations_ns: int):
    """One thread that waits in one place."""
    made = ProfileBuilder()
    thread = made.thread(1)
    for ns in durations_ns:
        made.wait(thread, ns, [python("f"), wait("lock")])
    return made.build()


def test_figures_of_a_group() -> None:
    (group,) = group_waits(of_durations(*(MS * number for number in range(200, 0, -1))), "reason", ALL, 5).groups
    assert (group.count, group.total_ns, group.mean_ns) == (200, 20_100 * MS, 100_500_000)
    assert (group.min_ns, group.p50_ns, group.p99_ns, group.max_ns) == (MS, 100 * MS, 198 * MS, 200 * MS)


@pytest.mark.parametrize(
    ("durations", "p50", "p99"), [([7], 7, 7), ([1, 9], 1, 9), ([1, 2, 3], 2, 3), (range(1, 101), 50, 99)]
)
def test_percentiles_are_of_waits_that_were(durations: list[int], p50: int, p99: int) -> None:
    (group,) = group_waits(of_durations(*durations), "reason", ALL, 5).groups
    assert (group.p50_ns, group.p99_ns) == (p50, p99)


@pytest.mark.parametrize(
    ("durations_ns", "first", "buckets"),
    [
        ([1, 999, 1_999], 0, (3,)),
        ([2_000], 1, (1,)),
        ([1_000, 2_000, 3_999, 4_000, 1_024_000], 0, (1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1)),
        ([2**40 * 1_000, 2**40 * 1_000 - 1], 39, (1, 1)),
    ],
)
def test_buckets_are_powers_of_two_of_a_microsecond(
    durations_ns: list[int], first: int, buckets: tuple[int, ...]
) -> None:
    (group,) = group_waits(of_durations(*durations_ns), "reason", ALL, 5).groups
    assert (group.first_bucket, group.buckets) == (first, buckets)


def test_by_reason_and_stack_with_idle_ones_apart() -> None:
    groups = group_waits(waiting_profile(), "stack", ALL, 10)
    found = [(group.total_ns, group.count) for group in groups.groups]
    gil_ns = sum(100_000 << turn % 6 for turn in range(40))
    assert found == [(1_580 * MS, 40), (1_540 * MS, 40), (1_500 * MS, 1), (gil_ns, 40)]
    assert groups.total_ns == sum(total for total, _ in found)
    assert [group.total_ns for group in groups.idle] == [groups.idle_ns] == [1_900 * MS]


@pytest.mark.parametrize("by", GROUPINGS)
def test_nothing_is_in_two_groups_or_in_none(by: str) -> None:
    profile = waiting_profile()
    assert profile.waits is not None
    groups = group_waits(profile, by, ALL, 1_000)
    assert len(groups.groups) == groups.group_count and len(groups.idle) == groups.idle_group_count
    every_ns = int(profile.waits.rows["blocked_ns"].sum())
    assert groups.total_ns + groups.idle_ns + groups.without_lock_ns == every_ns
    assert sum(group.count for group in groups.groups + groups.idle) <= len(profile.waits.rows)
    for group in groups.groups:
        assert sum(group.buckets) == group.count
        for shares in (group.threads, group.reasons, group.functions, group.stacks):
            assert sum(share.ns for share in shares) == group.total_ns
    few = group_waits(profile, by, ALL, 1)
    assert few.groups == groups.groups[:1] and few.total_ns == groups.total_ns


def test_lines_of_a_function_are_one_group_if_wanted() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for line in (1, 2):
        made.wait(thread, MS, [python("f", line=line), wait("lock")])
    profile = made.build()
    assert group_waits(profile, "stack", ALL, 5).group_count == 2
    assert group_waits(profile, "stack", ALL, 5, merge_lines=True).group_count == 1
    assert group_waits(profile, "function", ALL, 5).group_count == 1


def test_a_lock_is_one_of_its_process_and_taken_in_a_function() -> None:
    made = ProfileBuilder()
    threads = [made.thread(1, pid=10), made.thread(2, pid=10), made.thread(3, pid=11)]
    for thread in threads:
        made.wait(thread, MS, [python("f"), native("futex"), wait("lock")], lock=0x7F00)
    made.wait(threads[0], MS, [python("g"), wait("lock")], lock=0x7F00)
    made.wait(threads[0], 5 * MS, [python("g"), wait("net")])
    groups = group_waits(made.build(), "lock", ALL, 5)
    assert [(group.lock, group.count) for group in groups.groups] == [(0x7F00, 2), (0x7F00, 1), (0x7F00, 1)]
    assert groups.without_lock_ns == 5 * MS


def test_who_woke_and_who_had_woken_the_waker() -> None:
    profile = waiting_profile()
    assert profile.waits is not None
    lock = group_waits(profile, "stack", ALL, 10).groups[1]
    first, second = lock.woken_by
    wakers, frames = profile.waits.wakers, profile.frames
    assert (
        waker_name(wakers[first.waker], profile.threads) == "thread producer (101)"
        and frames[first.functions[0].value].name == "Queue.put"
    )
    assert (first.ns, first.all_ns, first.unknown_ns) == (1_404 * MS, 1_540 * MS, 0) and lock.waker_count == 2
    assert waker_name(wakers[second.waker], profile.threads) == "timer" and second.functions[0].value == -1
    assert frames[second.owner].name == "produce" and second.ns == second.all_ns
    assert group_waits(profile, "stack", ALL, 10, waker_depth=1).groups[1].woken_by == (first,)
    assert group_waits(profile, "stack", ALL, 10, waker_depth=9).groups[1].woken_by == (first, second)


def test_what_comes_before_is_of_the_waits_that_the_waker_ended() -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(1), made.thread(2)
    timer, by_worker = made.waker("timer"), made.thread_waker(worker)
    slept = made.wait(worker, MS, [python("nap"), wait("sleep")], waker=timer)
    read = made.wait(worker, 9 * MS, [python("read"), wait("disk")])
    made.wait(waiter, MS, [python("f"), wait("lock")], waker=by_worker, before=slept)
    made.wait(waiter, 9 * MS, [python("f"), wait("lock")], waker=by_worker, before=read)
    profile = made.build()
    assert profile.waits is not None
    (group,) = (it for it in group_waits(profile, "function", ALL, 5).groups if it.count == 2)
    second = group.woken_by[1]
    assert (second.ns, second.all_ns, second.unknown_ns) == (MS, 10 * MS, 9 * MS)
    assert profile.waits.reasons[second.reason] == "sleep" and profile.frames[second.owner].name == "nap"


def test_each_share_is_that_of_one_function() -> None:
    """rel_a and rel_b each end and delay half of the waits; lines make no difference."""
    made = ProfileBuilder()
    waiter, hog = made.thread(1), made.thread(2)
    waker = made.thread_waker(hog)
    for name, line, ms in (("rel_a", 1, 3), ("rel_b", 5, 4), ("rel_a", 2, 3), ("rel_b", 6, 1)):
        at = [python(name, line=line)]
        gil = made.wait(waiter, ms * MS, [python("f"), wait("gil")], waker=waker, waker_stack=at)
        made.behind(waiter, ms * MS, hog, at, gil)
    profile = made.build()
    (group,) = group_waits(profile, "stack", ALL, 5).groups
    names = [(profile.frames[share.value].name, share.ns) for share in group.woken_by[0].functions]
    assert names == [("rel_a", 6 * MS), ("rel_b", 5 * MS)] and group.woken_by[0].ns == group.total_ns
    holders = [(share.value, profile.frames[share.frame].name, share.ns) for share in group.holders]
    assert holders == [(hog, "rel_a", 6 * MS), (hog, "rel_b", 5 * MS)]
    assert gil_waits(profile)[0].holders == group.holders


def test_each_group_has_its_own_holders_of_the_gil() -> None:
    made = ProfileBuilder()
    waiter, first, second = made.thread(1), made.thread(2), made.thread(3)
    for name, ms, holder in (("f", 2, first), ("g", 5, second), ("g", 1, first)):
        made.behind(waiter, ms * MS, holder, None, made.wait(waiter, ms * MS, [python(name), wait("gil")]))
    made.wait(waiter, 9 * MS, [python("g"), wait("lock")])

    def holders(by: str, chosen: WaitFilter = ALL) -> list[list[tuple[int, int]]]:
        groups = group_waits(made.build(), by, chosen, 5).groups
        return [[(share.value, share.ns // MS) for share in group.holders] for group in groups]

    assert holders("stack") == [[], [(second, 5), (first, 1)], [(first, 2)]]
    assert holders("thread") == [[(second, 5), (first, 3)]]
    assert holders("thread", WaitFilter(min_block_ns=3 * MS)) == [[(second, 5)]]


def test_rows_count_for_the_waits_they_stand_for() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.wait(thread, 8 * MS, [python("f"), wait("lock")], total_ns=8 * MS, count=1)
    made.wait(thread, 1 * MS, [python("f"), wait("lock")], total_ns=12 * MS, count=10)
    made.wait(thread, 0, [wait("lock")], total_ns=4 * MS, count=9)
    profile = made.build()
    (group,) = group_waits(profile, "reason", ALL, 5).groups
    assert (group.total_ns, group.count, group.mean_ns) == (24 * MS, 20, 24 * MS // 20)
    assert (group.p50_ns, group.p99_ns, group.min_ns, group.max_ns) == (MS, 8 * MS, MS, 8 * MS)
    assert sum(group.buckets) == 11, "of the others no length is known"
    (long,) = group_waits(profile, "reason", WaitFilter(min_block_ns=MS), 5).groups
    assert (long.total_ns, long.count) == (20 * MS, 11)


def test_wakers_that_woke_each_other_end() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    waker = made.thread_waker(thread)
    made.wait(thread, MS, [wait("lock")], waker=waker, before=2)
    made.wait(thread, MS, [wait("lock")], waker=waker, before=1)
    assert len(group_waits(made.build(), "reason", ALL, 5, waker_depth=20).groups[0].woken_by) == 20


def test_holders_of_the_gil() -> None:
    profile = waiting_profile()
    (gil,) = gil_waits(profile)
    assert (gil.thread, gil.total_ns) == (0, 59 * MS)
    assert [(holder.value, holder.ns) for holder in gil.holders] == [(2, 55 * MS), (1, 3 * MS), (-1, MS)]
    assert profile.frames[gil.holders[0].frame].name == "hog_gil" and gil.holders[2].frame == -1
    assert group_waits(profile, "stack", ALL, 10).groups[3].holders == gil.holders
    assert gil_waits(empty_profile()) == []


def test_filters() -> None:
    def counts(chosen: WaitFilter) -> tuple[int, int]:
        groups = group_waits(waiting_profile(), "reason", chosen, 10)
        return sum(group.count for group in groups.groups), len(groups.idle)

    assert counts(WaitFilter(hides_idle=True)) == (121, 0)
    assert counts(WaitFilter(min_block_ns=1_500 * MS)) == (1, 1)
    assert counts(WaitFilter(min_block_ns=1_500 * MS + 1)) == (0, 1)
    assert counts(WaitFilter(task_states=2)) == (1, 0)
    assert counts(WaitFilter(task_states=4)) == (0, 0)
    assert counts(WaitFilter(holds_gil=True)) == (0, 0)


@pytest.mark.parametrize(
    ("text", "found"), [("S", [0x1, 0x2001]), ("D", [0x2, 0x102]), ("I", [0x402]), ("P", [0x40]), ("T", [0x104])]
)
def test_states_as_the_kernel_has_them(text: str, found: list[int]) -> None:
    """include/linux/sched.h: kernel threads without work are TASK_UNINTERRUPTIBLE | TASK_NOLOAD."""
    made = ProfileBuilder()
    thread = made.thread(1)
    for state in (0x1, 0x2, 0x40, 0x102, 0x104, 0x402, 0x2001):
        made.wait(thread, MS, [wait("lock")], task_state=state)
    table = made.build().waits
    assert table is not None
    rows = table.rows[chosen_rows(table, WaitFilter(task_states=task_states(text)))]
    assert rows["task_state"].tolist() == found


def test_time_on_the_run_queue_alone_is_no_wait() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.wait(thread, 0, [wait("lock")], ready=MS)
    made.spend(thread, OFF_CPU, MS, [wait("lock")])
    assert group_waits(made.build(), "reason", ALL, 5).group_count == 0


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("S", 1),
        ("d", 2),
        ("S,D", 3),
        ("SD", 3),
        ("T", 12),
        ("uninterruptible", 2),
        ("2", 2),
        ("stopped, S", 5),
        ("IP", 0x440),
    ],
)
def test_states(text: str, mask: int) -> None:
    assert task_states(text) == mask


@pytest.mark.parametrize("text", ["Q", "", "S,", "0", "-1", "99999", "sleeping", "²"])
def test_states_there_are_none_of(text: str) -> None:
    with pytest.raises(ValueError, match="is no state"):
        task_states(text)


def test_a_profile_without_waits_is_refused() -> None:
    with pytest.raises(ValueError, match="built with them"):
        group_waits(empty_profile(), "stack", ALL, 10)


@pytest.mark.parametrize("by", GROUPINGS)
def test_half_a_million_waits_are_grouped_at_once(by: str) -> None:
    made = ProfileBuilder()
    threads = [made.thread(tid) for tid in range(1, 9)]
    for number in range(2_000):
        made.stack([python(f"f{number}", line=1), python("g"), wait("lock")])
    for thread in threads:
        made.thread_waker(thread)
    random = np.random.default_rng(7)
    rows = np.zeros(500_000, WAIT_ROW_DTYPE)
    limits = {"thread": 8, "stack": 2_000, "waker": 9, "waker_stack": 2_001, "waker_wait": 500_001, "lock": 300}
    for column, limit in limits.items():
        rows[column] = random.integers(0, limit, len(rows))
    rows["blocked_ns"] = random.exponential(MS, len(rows)) + 1
    rows["total_ns"], rows["count"] = rows["blocked_ns"], 1
    holders = np.zeros(500_000, HOLDER_ROW_DTYPE)
    holders["wait"], holders["holder"] = np.arange(len(holders)), random.integers(-1, 8, len(holders))
    holders["stack"], holders["ns"] = random.integers(0, 2_001, len(holders)), rows["blocked_ns"]
    table = WaitTable(rows, ("lock",), tuple(made.wakers), holders)
    profile = replace(made.build(), waits=table)
    before_s = time.process_time()
    groups = group_waits(profile, by, ALL, 10)
    assert time.process_time() - before_s < 4, "about half a second"
    assert groups.total_ns + groups.without_lock_ns == int(rows["blocked_ns"].sum())
