"""Groups of waits against answers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag, ThreadState
from bpfprof.model.states import reason_text
from bpfprof.model.statuses import Status
from bpfprof.query.tables.groups import WaitGroups, group_waits
from bpfprof.query.waits.chains import gil_waits, waker_name
from bpfprof.render.formats import GROUPINGS, RenderOptions
from bpfprof.render.off_cpu import render_off_cpu
from tests.unit.measured import least_cpu_s
from tests.unit.render.profiles import MS, READY, ProfileBuilder, empty_profile, native, python, wait, waiting_profile


def of_durations(*durations_ns: int):
    """One thread that waits in one place."""
    made = ProfileBuilder()
    thread = made.thread(1)
    for ns in durations_ns:
        made.wait(thread, ns, [python("f"), wait("lock")])
    return made.build()


def test_figures_of_a_group() -> None:
    (group,) = group_waits(of_durations(*(MS * number for number in range(200, 0, -1))), "reason", 5).groups
    assert (group.count, group.total_ns, group.mean_ns) == (200, 20_100 * MS, 100_500_000)
    assert (group.min_ns, group.p50_ns, group.p99_ns, group.max_ns) == (MS, 100 * MS, 198 * MS, 200 * MS)


@pytest.mark.parametrize(
    ("durations", "p50", "p99"), [([7], 7, 7), ([1, 9], 1, 9), ([1, 2, 3], 2, 3), (range(1, 101), 50, 99)]
)
def test_percentiles_are_of_waits_that_were(durations: list[int], p50: int, p99: int) -> None:
    (group,) = group_waits(of_durations(*durations), "reason", 5).groups
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
    (group,) = group_waits(of_durations(*durations_ns), "reason", 5).groups
    assert (group.first_bucket, group.buckets) == (first, buckets)


def test_by_reason_and_stack_with_idle_ones_apart() -> None:
    groups = group_waits(waiting_profile(), "stack", 10)
    found = [(group.total_ns, group.count) for group in groups.groups]
    gil_ns = sum(100_000 << turn % 6 for turn in range(40))
    assert found == [(1_580 * MS, 40), (1_540 * MS, 40), (1_500 * MS, 1), (gil_ns, 40)]
    assert groups.total_ns == sum(total for total, _ in found)
    assert [group.total_ns for group in groups.idle] == [groups.idle_ns] == [1_900 * MS]


@pytest.mark.parametrize(("unnamed_ms", "is_first"), [(101, False), (199, False), (202, True)])
def test_what_has_no_function_goes_by_half_of_its_time(unnamed_ms: int, is_first: bool) -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.wait(thread, 100 * MS, [python("f"), wait("lock")])
    made.wait(thread, unnamed_ms * MS, [Frame(FrameKind.TRUNCATED, "stack not taken"), wait("lock")])
    for by in ("stack", "function"):
        first, second = (group.total_ns for group in group_waits(made.build(), by, 5).groups)
        assert (first == unnamed_ms * MS) is is_first and first + second == (100 + unnamed_ms) * MS


@pytest.mark.parametrize("by", GROUPINGS)
def test_nothing_is_in_two_groups_or_in_none(by: str) -> None:
    profile = waiting_profile()
    assert profile.spans is not None
    waited = profile.spans[(profile.spans["state"] == ThreadState.OFF_CPU) & (profile.spans["wait"] > 0)]
    groups = group_waits(profile, by, 1_000)
    assert len(groups.groups) == groups.group_count and len(groups.idle) == groups.idle_group_count
    assert groups.total_ns + groups.idle_ns + groups.without_lock_ns == waited["duration_ns"].sum()
    assert sum(group.count for group in groups.groups + groups.idle) <= waited["count"].sum()
    for group in groups.groups:
        assert sum(group.buckets) == group.count
        for shares in (group.threads, group.reasons, group.functions, group.stacks):
            assert sum(share.ns for share in shares) == group.total_ns
    few = group_waits(profile, by, 1)
    assert few.groups == groups.groups[:1] and few.total_ns == groups.total_ns


def test_lines_of_a_function_are_one_group_if_wanted() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for line in (1, 2):
        made.wait(thread, MS, [python("f", line=line), wait("lock")])
    profile = made.build()
    assert group_waits(profile, "stack", 5).group_count == 2
    assert group_waits(profile, "stack", 5, merge_lines=True).group_count == 1
    assert group_waits(profile, "function", 5).group_count == 1


def test_a_lock_is_one_of_its_process_and_taken_in_a_function() -> None:
    made = ProfileBuilder()
    threads = [made.thread(1, pid=10), made.thread(2, pid=10), made.thread(3, pid=11)]
    for thread in threads:
        made.wait(thread, MS, [python("f"), native("futex"), wait("lock")], lock=0x7F00)
    made.wait(threads[0], MS, [python("g"), wait("lock")], lock=0x7F00)
    made.wait(threads[0], 5 * MS, [python("g"), wait("net")])
    groups = group_waits(made.build(), "lock", 5)
    assert [(group.lock, group.count) for group in groups.groups] == [(0x7F00, 2), (0x7F00, 1), (0x7F00, 1)]
    assert groups.without_lock_ns == 5 * MS


def test_who_woke_and_who_had_woken_the_waker() -> None:
    profile = waiting_profile()
    lock = group_waits(profile, "stack", 10).groups[1]
    first, second = lock.woken_by
    wakers, frames = profile.wakers, profile.frames
    assert (
        waker_name(wakers[first.wakers[0]], profile.threads) == "thread producer (101)"
        and frames[first.functions[0].value].name == "Queue.put"
    )
    assert (first.ns, first.all_ns, first.unknown_ns) == (1_404 * MS, 1_540 * MS, 0) and lock.waker_count == 2
    assert waker_name(wakers[second.wakers[0]], profile.threads) == "timer" and second.functions[0].value == -1
    assert frames[second.owner].name == "produce" and second.ns == second.all_ns
    assert group_waits(profile, "stack", 10, waker_depth=1).groups[1].woken_by == (first,)
    assert group_waits(profile, "stack", 10, waker_depth=9).groups[1].woken_by == (first, second)


@pytest.mark.parametrize("count", [3, 40])
def test_many_wakers_of_one_role_are_one(count: int) -> None:
    """Threads that live for one request each; what comes before is of the one with most."""
    made = ProfileBuilder()
    waiter = made.thread(100, "MainThread")
    for number in range(count):
        thread = made.thread(200 + number, f"request_{number}")
        made.wait(thread, MS, [python("nap"), wait("sleep")], waker=made.waker("timer"))
        made.wait(waiter, (number + 1) * MS, [python("f"), wait("lock")], waker=made.thread_waker(thread))
    profile = made.build()
    group = next(group for group in group_waits(profile, "function", 9).groups if group.threads[0].value == waiter)
    first, second = group.woken_by
    names = {waker_name(profile.wakers[number], profile.threads) for number in first.wakers}
    assert len(names) == (count if count > 3 else 1) and f"thread request_{count - 1} ({199 + count})" in names
    assert first.ns == (first.all_ns if count > 3 else count * MS) and group.waker_count == count
    assert [profile.wakers[number].kind for number in second.wakers] == ["timer"]
    text = render_off_cpu(profile, RenderOptions(by="function"))
    assert ("woken by 40 threads (request_0..39), 100%" in text) == (count == 40), text


def test_what_comes_before_is_of_the_waits_that_the_waker_ended() -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(1), made.thread(2)
    timer, by_worker = made.waker("timer"), made.thread_waker(worker)
    made.wait(worker, MS, [python("nap"), wait("sleep")], waker=timer)
    made.wait(worker, 9 * MS, [python("read"), wait("disk")])
    made.wait(waiter, MS, [python("f"), wait("lock")], waker=by_worker)
    made.wait(waiter, 9 * MS, [python("f"), wait("lock")], waker=by_worker)
    profile = made.build()
    (group,) = (it for it in group_waits(profile, "function", 5).groups if it.count == 2)
    second = group.woken_by[1]
    assert (second.ns, second.all_ns, second.unknown_ns) == (MS, 10 * MS, 9 * MS)
    assert reason_text(second.reason) == "sleep" and profile.frames[second.owner].name == "nap"


def test_each_share_is_that_of_one_function() -> None:
    """rel_a and rel_b each end and delay half of the waits; lines make no difference."""
    made = ProfileBuilder()
    waiter, hog = made.thread(1), made.thread(2)
    waker = made.thread_waker(hog)
    for name, line, ms in (("rel_a", 1, 3), ("rel_b", 5, 4), ("rel_a", 2, 3), ("rel_b", 6, 1)):
        at = [python(name, line=line)]
        behind = [(1, hog, at)]
        made.wait(waiter, ms * MS, [python("f"), wait("gil")], waker=waker, waker_stack=at, behind=behind)
    profile = made.build()
    (group,) = group_waits(profile, "stack", 5).groups
    names = [(profile.frames[share.value].name, share.ns) for share in group.woken_by[0].functions]
    assert names == [("rel_a", 6 * MS), ("rel_b", 5 * MS)] and group.woken_by[0].ns == group.total_ns
    holders = [(share.value, profile.frames[share.frame].name, share.ns) for share in group.holders]
    assert holders == [(hog, "rel_a", 6 * MS), (hog, "rel_b", 5 * MS)]
    assert gil_waits(profile)[0].holders == group.holders


def test_each_group_has_its_own_holders_of_the_gil() -> None:
    made = ProfileBuilder()
    waiter, first, second = made.thread(1), made.thread(2), made.thread(3)
    for name, ms, holder in (("f", 2, first), ("g", 5, second), ("g", 1, first)):
        made.wait(waiter, ms * MS, [python(name), wait("gil")], behind=[(1, holder, None)])
    made.wait(waiter, 9 * MS, [python("g"), wait("lock")])

    def holders(by: str) -> list[list[tuple[int, int]]]:
        groups = group_waits(made.build(), by, 5).groups
        return [[(share.value, share.ns // MS) for share in group.holders] for group in groups]

    assert holders("stack") == [[], [(second, 5), (first, 1)], [(first, 2)]]
    assert holders("thread") == [[(second, 5), (first, 3)]]


def test_waits_count_for_those_they_stand_for() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.wait(thread, 8 * MS, [python("f"), wait("lock")])
    made.wait(thread, 1 * MS, [python("f"), wait("lock")], stands_for_ns=12 * MS, count=10)
    made.wait(thread, 4 * MS, [wait("lock")], wait=0, status=Status.NOT_SAMPLED, count=9)
    (group,) = group_waits(made.build(), "reason", 5).groups
    assert (group.total_ns, group.count, group.mean_ns) == (24 * MS, 20, 24 * MS // 20)
    assert (group.p50_ns, group.p99_ns, group.min_ns, group.max_ns) == (MS, 8 * MS, MS, 8 * MS)
    assert sum(group.buckets) == 11, "of the others no length is known"


def test_wakers_that_woke_each_other_end() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for _ in range(25):
        made.wait(thread, MS, [wait("lock")], waker=made.thread_waker(thread))
    assert len(group_waits(made.build(), "reason", 5, waker_depth=20).groups[0].woken_by) == 20


def test_holders_of_the_gil() -> None:
    profile = waiting_profile()
    (gil,) = gil_waits(profile)
    assert (gil.thread, gil.total_ns) == (0, 59 * MS)
    assert [(holder.value, holder.ns) for holder in gil.holders] == [(2, 55 * MS), (1, 3 * MS), (-1, MS)]
    assert profile.frames[gil.holders[0].frame].name == "hog_gil" and gil.holders[2].frame == -1
    holders = group_waits(profile, "stack", 10).groups[3].holders
    assert [(holder.value, holder.frame) for holder in holders] == [(it.value, it.frame) for it in gil.holders]
    assert gil_waits(empty_profile()) == []


def test_what_the_profile_does_not_show_is_in_no_group() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for flags in (0, SpanFlag.HIDDEN, SpanFlag.IDLE, SpanFlag.IDLE | SpanFlag.HIDDEN):
        made.wait(thread, MS + flags, [python("f"), wait("lock")], flags=flags)
    groups = group_waits(made.build(), "reason", 5)
    assert (groups.total_ns, groups.idle_ns, groups.hidden_idle_ns) == (MS, MS + 2, 0)
    hidden = group_waits(made.build(), "reason", 5, hide_idle=True)
    assert (hidden.total_ns, hidden.idle_ns, hidden.hidden_idle_ns) == (MS, 0, MS + 2)


def test_the_end_of_a_wait_in_a_window_has_no_count() -> None:
    profile = waiting_profile()
    assert profile.spans is not None
    spans = profile.spans.copy()
    spans["count"] = 0
    assert all(
        group.mean_ns == group.total_ns for group in group_waits(replace(profile, spans=spans), "stack", 10).groups
    )


def test_time_on_the_run_queue_and_short_waits_are_in_no_group() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ThreadState.RUNQUEUE, MS, [READY])
    made.spend(thread, ThreadState.OFF_CPU, MS, [Frame(FrameKind.SHORT_WAITS), wait("lock")])
    assert group_waits(made.build(), "reason", 5).group_count == 0


def test_a_profile_without_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="built with its spans"):
        group_waits(replace(empty_profile(), spans=None), "stack", 10)


@pytest.mark.second_tier
@pytest.mark.parametrize("by", GROUPINGS)
def test_half_a_million_waits_are_grouped_at_once(by: str) -> None:
    made = ProfileBuilder()
    for tid in range(1, 9):
        made.thread_waker(made.thread(tid))
    for number in range(2_000):
        made.stack([python(f"f{number}", line=1), python("g"), wait("lock")])
    random = np.random.default_rng(7)
    spans = np.zeros(500_000, SPAN_DTYPE)
    limits = {"thread": 8, "stack": 2_000, "waker": 9, "waker_stack": 2_001, "holder": 9, "holder_stack": 2_001}
    for column, limit in {**limits, "lock": 300}.items():
        spans[column] = random.integers(0, limit, len(spans))
    spans["thread"].sort()
    spans["duration_ns"] = spans["stands_for_ns"] = random.exponential(MS, len(spans)) + 1
    spans["start_ns"] = np.cumsum(spans["duration_ns"])
    spans["state"], spans["reason"], spans["count"] = ThreadState.OFF_CPU, 1, 1
    spans["wait"] = np.arange(1, len(spans) + 1)
    profile = replace(made.build(), spans=spans)
    found: list[WaitGroups] = []
    assert least_cpu_s(lambda: found.append(group_waits(profile, by, 10)), 4) < 4, "about half a second"
    groups = found[-1]
    assert groups.total_ns + groups.without_lock_ns == int(spans["duration_ns"].sum())


@pytest.mark.parametrize("at_a_time", [1, 700, 1 << 20])
def test_groups_have_their_own_waits_however_many_are_in_memory(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them has all lengths up to so many milliseconds, which come in any order among the others'."""
    monkeypatch.setattr("bpfprof.query.work.waits._MOST_LENGTHS", at_a_time)
    made, rng = ProfileBuilder(), np.random.default_rng(5)
    counts = {f"f{number}": 100 * (number + 1) for number in range(6)}
    threads = [made.thread(tid) for tid in (1, 2)]
    lengths = [(name, each + 1) for name, count in counts.items() for each in range(count)]
    for place in rng.permutation(len(lengths)).tolist():
        name, length = lengths[place]
        made.wait(threads[place % 2], length * MS, [python(name), wait("lock")])
    groups = group_waits(made.build(), "function", 4).groups
    assert [group.count for group in groups] == [600, 500, 400, 300]
    for group in groups:
        count = group.count
        assert (group.min_ns, group.p50_ns, group.p99_ns, group.max_ns) == (
            *(MS, count // 2 * MS, count * 99 // 100 * MS, count * MS),
        )
        assert sum(group.buckets) == count


def test_a_wait_of_years_is_told_as_well_as_a_double_would_tell_it() -> None:
    year_ns = 31_556_952 * 10**9
    (group,) = group_waits(of_durations(*range(1, 1000), 33 * year_ns), "reason", 5).groups
    assert group.max_ns == pytest.approx(33 * year_ns, rel=1e-12) and group.count == 1000
    assert group.p50_ns <= 500 and group.p50_ns == pytest.approx(500, abs=128)
