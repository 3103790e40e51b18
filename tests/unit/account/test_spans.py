"""The spans of a recording: nothing of a thread's time is lost or there twice, and short waits are what they were.

Every recording goes through invariants.assert_covers(), which views.built() calls.
"""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.account.spans import SpanSource
from bpfprof.model.profile import Profile
from bpfprof.model.samples import HOLDS_GIL, UNSAMPLED, WAITS_FOR_GIL
from bpfprof.model.spans import SPAN_DTYPE, How, SpanFlag, ThreadState
from bpfprof.model.statuses import Status
from bpfprof.query.tables.groups import group_waits
from bpfprof.render.formats import GROUPINGS, RenderOptions
from bpfprof.stacks.stitch import StackSource
from tests.unit.account.invariants import assert_covers, spans_of
from tests.unit.profile.views import built, shown_ms, spent_ms, text
from tests.unit.recording.hand_made import FUTEX, IOCTL, MS, NANOSLEEP, START_NS, HandMade, Story, small
from tests.unit.render.profiles import collapsed_text

US = 1000


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process(100, name="train")
    empty.start["min_block_us"] = 100
    return empty


def spans(made: HandMade, window: tuple[int, int] | None = None) -> np.ndarray:
    """Of the first thread."""
    recording = made.recording()
    return spans_of(SpanSource(recording, StackSource(recording).statuses), 0, window)


def test_one_of_everything() -> None:
    assert_covers(small().recording())


def test_the_columns_of_a_span(made: HandMade) -> None:
    stack, waker_stack = (made.stack((made.code(name), 0, 0)) for name in ("f", "g"))
    waker, by = made.waker(0, 100, 100), {"waker_kind": 1, "waker_stack": waker_stack, "args": (0xABC0, 128, 0)}
    story = Story.begin(made).run(5 * MS, (2 * MS, stack)).block(20 * MS, 2 * MS, stack, FUTEX, waker=waker, **by)
    story.run(MS).block(MS, 0, 0, IOCTL, one_in=3, flags=HOLDS_GIL, status=Status.STACK_LOST).run(0).total()
    made.samples[0]["flags"] = HOLDS_GIL
    made.end = {"end_ns": story.now_ns}
    found = spans(made)
    assert found.dtype == SPAN_DTYPE
    cpu, lock, ready, _, ioctl = found
    assert (cpu["stack"], cpu["count"], cpu["flags"], cpu["reason"]) == (stack, 1, SpanFlag.HOLDS_GIL, 0)
    assert (lock["start_ns"], lock["duration_ns"], lock["stands_for_ns"]) == (5 * MS, 20 * MS, 20 * MS)
    assert [lock[name] for name in ("stack", "lock", "waker", "waker_stack")] == [stack, 0xABC0, waker, waker_stack]
    assert [lock[name] for name in ("count", "wait", "task_state", "reason", "status", "how")] == [1, 1, 1, 2, 0, 0]
    assert (ready["state"], ready["wait"], ready["reason"], ready["lock"]) == (ThreadState.RUNQUEUE, 1, 2, 0)
    assert (ioctl["wait"], ioctl["one_in"], ioctl["flags"]) == (2, 3, SpanFlag.HOLDS_GIL)
    assert (ioctl["status"], ioctl["waker"], ioctl["lock"]) == (Status.STACK_LOST, 0, 0)


def test_a_window_cuts_spans_and_counts_what_was_under_way(made: HandMade) -> None:
    stack = made.stack((made.code("f"), 0, 0))
    story = Story.begin(made).run(4 * MS).block(6 * MS, 2 * MS, stack).run(3 * MS).total()
    made.end = {"end_ns": story.now_ns}
    cut = spans(made, (7 * MS, 13 * MS))
    columns = ["state", "start_ns", "duration_ns", "stands_for_ns", "count"]
    assert cut[columns].tolist() == [
        (ThreadState.OFF_CPU, 7 * MS, 3 * MS, 3 * MS, 1),
        (ThreadState.RUNQUEUE, 10 * MS, 2 * MS, 2 * MS, 1),
        (ThreadState.ON_CPU, 12 * MS, MS, MS, 0),
    ]
    assert not len(spans(made, (15 * MS, 20 * MS)))


def test_short_waits_are_added_up_by_what_they_waited_for(made: HandMade) -> None:
    run = made.stack((made.code("run"), 0, 0))
    story = Story.begin(made).run(4 * MS, (MS, run))
    for _ in range(5):
        story.block_short(60 * US, ready=20 * US, syscall=FUTEX, flags=WAITS_FOR_GIL).run(MS)
    story.block_short(90 * US, syscall=NANOSLEEP).run(MS)
    story.block(5 * MS, stack=run, syscall=IOCTL).run(MS).total()
    profile = built(made, (story.now_ns - START_NS) / MS)
    assert spent_ms(profile) == {
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
    lines = collapsed_text(profile, RenderOptions()).splitlines()
    assert "process train (100);thread main (100);[short waits];[off-cpu: gil] 300" in lines


def test_short_waits_lie_among_the_cpu_time_of_their_burst(made: HandMade) -> None:
    run = made.stack((made.code("run"), 0, 0))
    story = Story.begin(made).run(2 * MS, (MS, run)).block_short(MS).run(2 * MS, (MS, run)).block(5 * MS, stack=run)
    story.run(2 * MS).total()
    assert shown_ms(built(made, 12)) == [
        ("run", 0, 3),
        ("wait sleep", 3, 0.75),
        ("run", 3.75, 1),
        ("wait sleep", 4.75, 5.25),
        ("run", 10, 2),
    ]
    (short,) = spans(made, (0, 4 * MS))[1:2]
    assert (short["how"], short["status"], short["wait"]) == (How.SUMMED, Status.SHORT_WAIT, 0)


def test_lost_waits_are_time_that_is_not_known(made: HandMade) -> None:
    """The others stay in their place, and nothing is made of what is missing."""
    Story.begin(made).run(2 * MS).block(6 * MS).run(MS).block_short(MS).run(MS).block(MS).run(MS).total()
    del made.waits[0]
    profile = built(made, 13, is_damaged=True)
    assert sum(spent_ms(profile).values()) == 7
    found = spans(made)
    assert found["duration_ns"][found["state"] == ThreadState.UNKNOWN].sum() == 6 * MS
    assert found["duration_ns"][found["how"] == How.SUMMED].sum() == MS
    assert shown_ms(profile)[-2:] == [("wait sleep", 10, 2), ("not_sampled", 12, 1)]


def test_waits_that_overlap_are_cut(made: HandMade) -> None:
    story = Story.begin(made).run(2 * MS).block(6 * MS).run(MS).block(2 * MS).run(MS).total()
    made.waits[1]["blocked_ns"] = 8 * MS
    made.end = {"end_ns": story.now_ns}
    recording = made.recording()
    assert_covers(recording, is_damaged=True)
    overlap_ns = SpanSource(recording, StackSource(recording).statuses).overlaps_ns().tolist()
    assert overlap_ns == [6 * MS], "what cannot be is told"


@pytest.mark.parametrize("seed", range(10))
def test_what_is_damaged_is_covered_too(seed: int) -> None:
    assert_covers(damaged_recording(np.random.default_rng(seed)).recording(), is_damaged=True)


@pytest.mark.parametrize("mode", ["cpu", "offcpu"])
def test_one_mode_holds_one_half(made: HandMade, mode: str) -> None:
    made.start["mode"] = mode
    Story.begin(made).run(2 * MS).block_short(MS).run(2 * MS).block(5 * MS).run(2 * MS).total()
    profile = built(made, 12)
    assert (
        shown_ms(profile)
        == {
            "cpu": [("not_sampled", 0, 4), ("", 4, 6), ("not_sampled", 10, 2)],
            "offcpu": [("", 0, 4), ("wait sleep", 4, 6), ("", 10, 2)],
        }[mode]
    )
    assert dict(profile.threads[0].off_by_reason) == {"sleep": 6 * MS}


def test_without_an_end_the_time_between_waits_is_short_waiting(made: HandMade) -> None:
    """The sums that were still open are lost with the end."""
    story = Story.begin(made).run(2 * MS).block_short(MS).run(2 * MS).block(5 * MS).run(MS).total()
    story.block_short(2 * MS).run(MS).block(3 * MS, ready=MS).run(MS).block_short(MS).run(MS)
    story.block(2 * MS).run(MS, stolen=MS).block(MS).run(MS)
    del made.short_waits[1:]
    profile = built(made)
    assert profile.quality.unfinished
    spent = spent_ms(profile)
    assert spent[("short_waits", "wait sleep")] == 1 and spent[("short_waits", "wait unknown")] == 3
    assert dict(profile.threads[0].off_by_reason) == {"sleep": 12 * MS, "unknown": 3 * MS}


def test_without_an_end_sums_may_be_later_than_the_last_wait(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).block(5 * MS).run(2 * MS).block_short(3 * MS).run(MS)
    Story.begin(made, tid=101).run(20 * MS).total()
    (main, _) = built(made).threads
    assert (main.on_cpu_ns, main.off_cpu_ns) == (12 * MS, 8 * MS)


def damaged_recording(chance: np.random.Generator) -> HandMade:
    """The one below with some times that cannot be."""
    made = random_recording(chance)
    for rows in (made.waits, made.samples, made.totals, made.short_waits):
        for row in rows:
            name = str(chance.choice(list(row.dtype.names)))
            if chance.random() < 0.2 and name.endswith("_ns"):
                row[name] = chance.integers(0, 1 << int(chance.integers(1, 52)))  # sums are exact below 2**53
    return made


def random_recording(chance: np.random.Generator) -> HandMade:
    """Four threads of 3 s with waits of every kind."""
    made = HandMade(start={"min_block_us": 100}, end={"end_ns": START_NS + 3_000 * MS})
    made.process()
    stacks = [made.stack((made.code(f"f{number}"), 0, 0)) for number in range(5)]
    for tid in range(4):
        story = Story.begin(made, 200 + tid, first_ns=START_NS + int(chance.integers(0, 9 * MS)))
        for _ in range(chance.integers(1, 60)):
            ns = int(chance.integers(1, 30 * MS))
            samples = [(into, int(chance.choice(stacks))) for into in range(int(chance.integers(10 * MS)), ns, 10 * MS)]
            story.run(ns, *samples, stolen=int(chance.integers(0, MS)) * int(chance.integers(2)))
            ready, stack, kind = int(chance.integers(0, MS)), int(chance.choice(stacks)), chance.random()
            wait = {"syscall": FUTEX, "flags": int(chance.choice([0, HOLDS_GIL, WAITS_FOR_GIL]))}
            if kind < 0.4:
                wait["flags"] |= UNSAMPLED * (kind < 0.2)
                story.block_short(int(chance.integers(1, MS)), ready, **wait)
            elif kind < 0.6:
                story.preempt(int(chance.integers(1, MS)), stack)
            else:
                wait |= {
                    "holder": int(chance.integers(5)),
                    "holder_stack": stack,
                    "waker_kind": int(chance.integers(4)),
                }
                story.block(int(chance.integers(1, 9 * MS)), ready, stack, one_in=int(chance.integers(4)), **wait)
        if chance.random() < 0.4:
            story.run(MS, stolen=777).die()
        else:
            last = START_NS + 3_000 * MS - story.now_ns
            (story.run(last) if chance.random() < 0.5 else story.run(MS).block(last - MS)).total()
    return made


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_accounted_to_the_nanosecond(seed: int) -> None:
    made = random_recording(np.random.default_rng(seed))
    profile = built(made)
    assert_all_waits_are_shown(profile)
    again = built(made)
    assert again.weights.tobytes() == profile.weights.tobytes() and again.stacks == profile.stacks


def assert_all_waits_are_shown(profile: Profile) -> None:
    """Tables of waits hold the time off the CPU of all threads, but for short waits, which have their own line."""
    assert profile.spans is not None
    blocked = profile.spans[profile.spans["state"] == ThreadState.OFF_CPU]
    short_ns = int(blocked["duration_ns"][blocked["status"] == Status.SHORT_WAIT].sum())
    for by in GROUPINGS:
        groups = group_waits(profile, by, 10)
        shown_ns = groups.total_ns + groups.idle_ns + groups.without_lock_ns + short_ns
        assert shown_ns == sum(thread.off_cpu_ns for thread in profile.threads)
