"""Waits that have no row: nothing of their time is lost, and it is called what it was."""

from __future__ import annotations

import numpy as np
import pytest
from bpfprof.query.short_weights import is_short_and_blocked
from bpfprof.query.wait_filter import WaitFilter

from bpfprof import abi
from bpfprof.account.cpu_clock import shared
from bpfprof.model.profile import Profile, ThreadState
from bpfprof.model.samples import HOLDS_GIL, LONG_WAIT_NS, UNSAMPLED, WAITS_FOR_GIL
from bpfprof.model.statuses import Status
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.query.groups import GROUPINGS, group_waits
from bpfprof.query.off_cpu import off_cpu_profile
from bpfprof.render.collapsed import render_collapsed
from bpfprof.render.options import RenderOptions
from tests.unit.profile.views import assert_whole, spent_ms, text
from tests.unit.recording.hand_made import FUTEX, IOCTL, MS, NANOSLEEP, START_NS, HandMade, Story

US = 1000


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process(100, name="train")
    empty.start["min_block_us"] = 100
    return empty


def built(made: HandMade, end_ms: float | None, **options: bool) -> Profile:
    if end_ms is not None:
        made.end = {"end_ns": START_NS + round(end_ms * MS)}
    return build_profile(made.recording(), ProfileOptions(with_spans=True, **options))


def timeline_ms(profile: Profile, thread: int = 0) -> list[tuple[str, float, float]]:
    """(last frame, start, duration) of the thread's rows."""
    assert profile.timeline is not None
    rows = profile.timeline[profile.timeline["thread"] == thread]
    return [
        (
            text(profile, profile.stacks[row["stack"]][-1]) if profile.stacks[row["stack"]] else "",
            int(row["start_ns"]) / MS,
            int(row["duration_ns"]) / MS,
        )
        for row in rows
    ]


def test_short_waits_are_added_up_by_what_they_waited_for(made: HandMade) -> None:
    run = made.stack((made.code("run"), 0, 0))
    story = Story.begin(made).run(4 * MS, (MS, run))
    for _ in range(5):
        story.block_short(60 * US, ready=20 * US, syscall=FUTEX, flags=WAITS_FOR_GIL).run(MS)
    story.block_short(90 * US, syscall=NANOSLEEP).run(MS)
    story.block(5 * MS, stack=run, syscall=IOCTL).run(MS).total()
    profile = built(made, story.now_ns / MS - START_NS / MS)
    assert_whole(profile)
    assert spent_ms(profile, 0) == {
        ("run",): 10,
        ("not_sampled",): 1,
        ("short_waits", "wait gil"): 0.3,
        ("short_waits", "runqueue"): 0.1,
        ("short_waits", "wait sleep"): 0.09,
        ("run", "wait syscall ioctl"): 5,
    }
    counts = {text(profile, profile.stacks[row["stack"]][-1]): int(row["count"]) for row in profile.weights}
    assert (counts["wait gil"], counts["runqueue"], counts["wait sleep"]) == (5, 5, 1)
    (thread,) = profile.threads
    assert thread.off_by_reason == (("syscall ioctl", 5 * MS), ("gil", 300 * US), ("sleep", 90 * US))
    assert thread.wait_count == 7
    assert (profile.quality.short_count, profile.quality.unsampled_count) == (6, 0)
    assert profile.info.min_block_us == 100
    assert profile.gil_waits[["thread", "holder", "stack", "ns"]].tolist() == [(0, -1, 0, 300 * US)]


def test_the_text_of_short_waits(made: HandMade) -> None:
    story = Story.begin(made).run(MS).block_short(90 * US, flags=WAITS_FOR_GIL).run(MS).total()
    profile = built(made, (story.now_ns - START_NS) / MS)
    lines = render_collapsed(profile, RenderOptions()).splitlines()
    assert "process train (100);thread main (100);[short waits];[off-cpu: gil] 90" in lines


def test_short_waits_lie_among_the_cpu_time_of_their_burst(made: HandMade) -> None:
    run = made.stack((made.code("run"), 0, 0))
    Story.begin(made).run(2 * MS, (MS, run)).block_short(MS).run(2 * MS, (MS, run)).block(5 * MS, stack=run).run(
        2 * MS
    ).total()
    profile = built(made, 12)
    assert_whole(profile)
    assert timeline_ms(profile) == [
        ("run", 0, 3),
        ("short_waits", 3, 0.75),
        ("run", 3.75, 1),
        ("short_waits", 4.75, 0.25),
        ("wait sleep", 5, 5),
        ("run", 10, 2),
    ]


def test_a_lost_wait_is_no_short_wait(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).block(6 * MS).run(MS).block_short(MS).run(MS).block(MS).run(MS).total()
    del made.waits[0]
    profile = built(made, 13)
    assert sum(spent_ms(profile, 0).values()) == 7, "as before: a difference"
    assert sum(row[2] for row in timeline_ms(profile) if row[0] == "short_waits") == 1


@pytest.mark.parametrize("mode", ["cpu", "offcpu"])
def test_one_mode_holds_one_half(made: HandMade, mode: str) -> None:
    made.start["mode"] = mode
    Story.begin(made).run(2 * MS).block_short(MS).run(2 * MS).block(5 * MS).run(2 * MS).total()
    profile = built(made, 12)
    assert ("short_waits", "wait sleep") in spent_ms(profile, 0) or mode == "cpu"
    expected = {
        "cpu": [("not_sampled", 0, 4), ("", 4, 6), ("not_sampled", 10, 2)],
        "offcpu": [("", 0, 4), ("short_waits", 4, 1), ("", 10, 2)],
    }
    assert [row for row in timeline_ms(profile) if "wait " not in row[0]] == expected[mode]
    assert dict(profile.threads[0].off_by_reason) == {"sleep": 6 * MS}


def test_without_an_end_the_time_between_waits_is_short_waiting(made: HandMade) -> None:
    """The sums that were still open are lost with the end."""
    story = Story.begin(made).run(2 * MS).block_short(MS).run(2 * MS).block(5 * MS).run(MS).total()
    story.block_short(2 * MS).run(MS).block(3 * MS, ready=MS).run(MS).block_short(MS).run(MS)
    story.block(2 * MS).run(MS, stolen=MS).block(MS).run(MS)
    del made.short_waits[1:]
    profile = built(made, None)
    assert profile.quality.unfinished
    assert_whole(profile)
    spent = spent_ms(profile, 0)
    assert spent[("short_waits", "wait sleep")] == 1 and spent[("short_waits", "wait unknown")] == 3
    assert dict(profile.threads[0].off_by_reason) == {"sleep": 12 * MS, "unknown": 3 * MS}


def test_without_an_end_sums_may_be_later_than_the_last_wait(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).block(5 * MS).run(2 * MS).block_short(3 * MS).run(MS)
    Story.begin(made, tid=101).run(20 * MS).total()
    profile = built(made, None)
    assert_whole(profile)
    (main, _) = profile.threads
    assert (main.on_cpu_ns, main.off_cpu_ns) == (12 * MS, 8 * MS)


def test_only_what_holds_the_gil(made: HandMade) -> None:
    run, wait = made.stack((made.code("run"), 0, 0)), made.stack((made.code("wait"), 0, 0))
    story = Story.begin(made).run(30 * MS, (5 * MS, run), (15 * MS, wait), (25 * MS, run), stolen=3 * MS)
    made.samples[0]["flags"] = made.samples[2]["flags"] = HOLDS_GIL
    story.block(5 * MS, MS, wait, flags=HOLDS_GIL).run(MS).block(2 * MS, stack=wait).run(MS).block_short(MS).run(MS)
    story.total()
    profile = built(made, 45, gil_only=True)
    assert spent_ms(profile, 0) == {
        ("run",): 20,
        ("run", "runqueue"): 2,
        ("wait", "wait sleep"): 5,
        ("wait", "runqueue"): 1,
    }
    assert profile.threads[0].accounted_ns == profile.threads[0].wall_ns, "the accounting stays whole"


def test_unsampled_waits_are_spread_over_their_like(made: HandMade) -> None:
    first, second, long = (made.stack((made.code(name), 0, 0)) for name in ("first", "second", "long"))
    story = Story.begin(made).run(MS).block(2 * MS, MS, first, FUTEX).run(MS).block(6 * MS, MS, second, FUTEX)
    story.run(MS).block(7 * MS, 0, second, IOCTL).run(MS).block(10 * MS, 0, long, FUTEX).run(MS)
    for _ in range(4):
        story.block_short(5 * MS + 1, MS, syscall=FUTEX, flags=UNSAMPLED, task_state=1).run(MS)
    story.total()
    profile = built(made, (story.now_ns - START_NS) / MS)
    assert_whole(profile)
    spent = spent_ms(profile, 0)
    assert spent[("first", "wait lock")] == pytest.approx(7, abs=1e-5)
    assert spent[("second", "wait lock")] == pytest.approx(21, abs=1e-5)
    assert spent[("long", "wait lock")] == 10, "of that length each has a row"
    assert spent[("second", "wait syscall ioctl")] == 7
    assert spent[("first", "runqueue")] == spent[("second", "runqueue")] == 3
    assert sum(spent.values()) * MS == pytest.approx(profile.threads[0].wall_ns)
    rows = {tuple(text(profile, number) for number in profile.stacks[row["stack"]]): row for row in profile.weights}
    assert rows["first", "wait lock"]["count"] == 3, "one and half of the four"
    assert rows["second", "wait lock"]["max_ns"] == 6 * MS
    assert (profile.quality.short_count, profile.quality.unsampled_count) == (0, 4)
    assert dict(profile.threads[0].off_by_reason) == {"lock": 38 * MS + 4, "syscall ioctl": 7 * MS}


def test_a_wait_chosen_as_one_in_some_stands_for_the_others(made: HandMade) -> None:
    """Not one that has a stack in any case; by what it stands for; and for those in the same call."""
    certain, rare, often = (made.stack((made.code(name), 0, 0)) for name in ("certain", "rare", "often"))
    story = Story.begin(made).run(MS).block(5 * MS, 0, certain, FUTEX).run(MS).block(2 * MS, 0, rare, FUTEX, one_in=4)
    story.run(MS).block(2 * MS, 0, often, FUTEX, one_in=2).run(MS)
    story.block_short(8 * MS, syscall=FUTEX, flags=UNSAMPLED, task_state=1).run(MS)
    for descriptor, stack in ((3, rare), (4, often)):
        story.block(MS, 0, stack, IOCTL, one_in=2, args=(descriptor, 0, 0)).run(MS)
    story.block_short(3 * MS, syscall=IOCTL, arg=4, flags=UNSAMPLED, task_state=1).run(MS).total()
    profile = built(made, (story.now_ns - START_NS) / MS)
    assert_whole(profile)
    assert spent_ms(profile, 0, ThreadState.OFF_CPU) == {
        ("certain", "wait lock"): 5,
        ("rare", "wait lock"): 8,
        ("often", "wait lock"): 4,
        ("rare", "wait syscall ioctl"): 1,
        ("often", "wait syscall ioctl"): 4,
    }


def test_a_long_wait_without_a_stack(made: HandMade) -> None:
    row = {"status": int(Status.NOT_SAMPLED)}
    Story.begin(made).run(MS).block(12 * MS, MS, 0, FUTEX, **row).run(MS).total()
    profile = built(made, 15)
    assert spent_ms(profile, 0) == {
        ("not_sampled",): 2,
        ("not_sampled", "wait lock"): 12,
        ("not_sampled", "runqueue"): 1,
    }
    assert (profile.quality.truncated_counts, profile.quality.unsampled_long_count) == ({}, 1)


def test_a_long_wait_is_shown_where_the_nearest_like_it_was(made: HandMade) -> None:
    """Of the same thread in the same call; a long one, if there is any."""
    missing = {"status": int(Status.NOT_SAMPLED)}
    first, second, short = (made.stack((made.code(name), 0, 0)) for name in ("first", "second", "short"))
    story = Story.begin(made).run(MS).block(20 * MS, 0, first, FUTEX).run(MS).block(2 * MS, 0, short, FUTEX).run(MS)
    story.block(30 * MS, 0, 0, FUTEX, **missing).run(50 * MS).block(11 * MS, 0, 0, FUTEX, **missing).run(MS)
    story.block(40 * MS, 0, second, FUTEX).run(MS).block(3 * MS, 0, short, IOCTL, args=(7, 0, 0)).run(MS)
    story.block(50 * MS, 0, 0, IOCTL, args=(7, 0, 0), **missing).run(MS)
    story.block(60 * MS, 0, 0, IOCTL, args=(8, 0, 0), **missing).run(MS).total()
    other = Story.begin(made, tid=101).run(MS).block(70 * MS, 0, 0, FUTEX, **missing).run(MS)
    other.total()
    for _ in range(2):  # building a profile leaves the recording as it is
        profile = built(made, (story.now_ns - START_NS) / MS)
        assert_whole(profile)
        assert spent_ms(profile, 0, ThreadState.OFF_CPU) == {
            ("first", "wait lock"): 50,
            ("second", "wait lock"): 51,
            ("short", "wait lock"): 2,
            ("short", "wait syscall ioctl"): 53,
            ("not_sampled", "wait syscall ioctl"): 60,
        }
        assert spent_ms(profile, 1, ThreadState.OFF_CPU) == {("not_sampled", "wait lock"): 70}
        assert (profile.quality.unsampled_count, profile.quality.unsampled_long_count) == (3, 2)


def test_unsampled_waits_without_their_like(made: HandMade) -> None:
    stack = made.stack((made.code("only"), 0, 0))
    Story.begin(made).run(MS).block(2 * MS, 0, stack, IOCTL).run(MS).block_short(6 * MS, flags=UNSAMPLED).run(
        MS
    ).total()
    Story.begin(made, tid=101).run(MS).block_short(9 * MS, MS, flags=UNSAMPLED).run(MS).total()
    profile = built(made, 12)
    assert spent_ms(profile, 0, ThreadState.OFF_CPU) == {("only", "wait syscall ioctl"): 8}
    assert spent_ms(profile, 1) == {
        ("not_sampled",): 2,
        ("not_sampled", "wait sleep"): 9,
        ("not_sampled", "runqueue"): 1,
    }
    assert timeline_ms(profile, 1) == [("not_sampled", 0, 2), ("not_sampled", 2, 10)]
    assert_whole(profile)


@pytest.mark.parametrize("seed", range(20))
def test_shares_sum_to_the_nanosecond(seed: int) -> None:
    chance = np.random.default_rng(seed)
    weights = chance.integers(0, 10 ** int(chance.integers(1, 12)), int(chance.integers(1, 300)))
    weights[0] += 1
    total = int(chance.integers(0, 1 << 50))
    parts = shared(weights, total)
    assert int(parts.sum()) == total and (parts >= 0).all()
    assert np.abs(parts - weights / weights.sum() * total).max() <= 2
    assert (parts[weights == 0] == 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_with_short_waits_are_accounted_to_the_nanosecond(made: HandMade, seed: int) -> None:
    chance = np.random.default_rng(seed)
    stacks = [made.stack((made.code(f"f{number}"), 0, 0)) for number in range(5)]
    for tid in range(4):
        story = Story.begin(made, 200 + tid, first_ns=START_NS + int(chance.integers(0, 9 * MS)))
        for _ in range(chance.integers(1, 60)):
            ns = int(chance.integers(1, 30 * MS))
            samples = [(into, int(chance.choice(stacks))) for into in range(int(chance.integers(10 * MS)), ns, 10 * MS)]
            story.run(ns, *samples, stolen=int(chance.integers(0, MS)) * int(chance.integers(2)))
            ready, stack = int(chance.integers(0, MS)), int(chance.choice(stacks))
            kind = chance.random()
            if kind < 0.4:
                story.block_short(int(chance.integers(1, MS)), ready, syscall=FUTEX, flags=UNSAMPLED * (kind < 0.1))
            elif kind < 0.6:
                story.preempt(int(chance.integers(1, MS)), stack)
            else:
                story.block(int(chance.integers(1, 9 * MS)), ready, stack, syscall=FUTEX)
        if chance.random() < 0.4:
            story.run(MS, stolen=777).die()
        else:
            story.run(START_NS + 3_000 * MS - story.now_ns).total()
    profile = built(made, 3_000, with_spans=True)
    assert_whole(profile)
    assert_all_waits_are_shown(profile)


def assert_all_waits_are_shown(profile: Profile) -> None:
    """Views of the waits hold the time off the CPU of the accounting, in all and of each thread."""
    short_ns = int(profile.weights["total_ns"][is_short_and_blocked(profile)].sum())
    for by in GROUPINGS:
        groups = group_waits(profile, by, WaitFilter(), 10)
        shown_ns = groups.total_ns + groups.idle_ns + groups.without_lock_ns + short_ns
        assert shown_ns == sum(thread.off_cpu_ns for thread in profile.threads)
    weights = off_cpu_profile(profile, WaitFilter()).weights
    for number, thread in enumerate(profile.threads):
        assert int(weights["total_ns"][weights["thread"] == number].sum()) == thread.off_cpu_ns


def test_the_timeline_of_waits_has_those_without_a_row(made: HandMade) -> None:
    stack = made.stack((made.code("f"), 0, 0))
    story = Story.begin(made).run(MS).block(2 * MS, 0, stack, FUTEX).run(MS)
    story.block_short(3 * MS, syscall=FUTEX, flags=UNSAMPLED).run(MS).block(4 * MS, 0, stack, FUTEX).run(MS).total()
    profile = built(made, 13, with_spans=True)
    assert_all_waits_are_shown(profile)
    for chosen, others_ms in ((WaitFilter(), 3), (WaitFilter(task_states=1), 0)):
        rows = timeline_ms(off_cpu_profile(profile, chosen))
        assert sum(ms for name, _, ms in rows if name == "wait lock") == 6
        assert sum(ms for name, _, ms in rows if name == "not_sampled") == others_ms
        assert sum(ms for _, _, ms in rows) == 13


def test_how_long_a_wait_without_a_stack_may_be() -> None:
    """The kernel side decides: see ebpf/abi.h."""
    assert abi.CONSTANTS["BP_LONG_WAIT_NS"] == LONG_WAIT_NS
