"""What passes a filter, and what is said of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.samples import HOLDS_GIL, WAITS_FOR_GIL
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.model.states import reason_number
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import OFF_CPU, ON_CPU, OPEN_END_NS, ProfileOptions, SpanFilter, task_states
from bpfprof.query.work.waits import find_waits
from tests.unit.account.test_spans import random_recording
from tests.unit.profile.views import built, spent_ms
from tests.unit.recording.hand_made import FUTEX, MS, NANOSLEEP, START_NS, HandMade, Story

READ, POLL = (next(iter(syscall_numbers(name))) for name in ("fsync", "poll"))
POOL = "/usr/lib/python3.12/concurrent/futures/thread.py"


def mixed() -> HandMade:
    """60 ms of three threads: `main` and `io` of `train`, `worker` of `serve`, which has little to do."""
    made = HandMade(end={"end_ns": START_NS + 60 * MS})
    made.process(100, name="train", command_line=["python", "train.py"], gil=[0x7000, 208])
    made.process(200, name="serve")
    step, take, hog, sync, idle = (
        made.stack((made.code(name, filename=file), 0, 0))
        for name, file in [*((name, "/srv/a.py") for name in ("step", "take", "hog", "sync")), ("_worker", POOL)]
    )
    by_io = {"waker": made.waker(1, 100, 101, "io"), "waker_kind": 1, "waker_stack": hog}
    main = Story.begin(made).run(10 * MS, (5 * MS, step)).block(10 * MS, 2 * MS, take, FUTEX, args=(1, 0, 0), **by_io)
    main.run(8 * MS, (4 * MS, step)).block(20 * MS, 0, step, FUTEX, flags=WAITS_FOR_GIL, holder=2, holder_stack=hog)
    main.run(10 * MS, (5 * MS, step)).total()
    io = Story.begin(made, tid=101).run(15 * MS, (5 * MS, hog))
    io.block(3 * MS, 0, sync, READ, task_state=2, flags=HOLDS_GIL, waker_kind=2).run(2 * MS)
    io.block(30 * MS, 0, take, NANOSLEEP, waker_kind=2).run(10 * MS, (5 * MS, hog)).total()
    worker = Story.begin(made, tid=200, process=1).run(5 * MS).block_short(MS, syscall=FUTEX).run(4 * MS)
    worker.preempt(10 * MS, step).block(40 * MS, 0, idle, POLL, args=(9, 1, 0)).total()
    for index, name in enumerate(("main", "io", "worker")):
        made.threads[index]["name"] = name
    made.samples[0]["flags"] = made.samples[3]["flags"] = HOLDS_GIL
    return made


def shown_ms(profile: Profile) -> list[tuple[float, ...]]:
    """(on CPU, run queue, off CPU) of each thread, as far as it is shown."""
    threads, states = range(len(profile.threads)), list(ThreadState)[:3]
    return [tuple(sum(spent_ms(profile, thread, state).values()) for state in states) for thread in threads]


NONE = (0, 0, 0)


@pytest.mark.parametrize(
    ("wanted", "shown", "text"),
    [
        ({}, [(28, 2, 30), (27, 0, 33), (9, 10, 41)], ""),
        ({"window_ns": (5 * MS, 25 * MS)}, [(8, 2, 10), (12, 0, 8), (4, 10, 6)], ", from 0.005 s to 0.025 s"),
        ({"window_ns": (50 * MS, OPEN_END_NS)}, [(10, 0, 0), (10, 0, 0), (0, 0, 10)], ", from 0.05 s to the end"),
        ({"window_ns": (90 * MS, 99 * MS)}, [NONE, NONE, NONE], ", from 0.09 s to 0.099 s"),
        ({"process": "^serve"}, [NONE, NONE, (9, 10, 41)], ", process ^serve"),
        ({"process": r"\(100\)"}, [(28, 2, 30), (27, 0, 33), NONE], r", process \(100\)"),
        ({"thread": "io|worker"}, [NONE, (27, 0, 33), (9, 10, 41)], ", thread io|worker"),
        ({"thread": r"main \(100\)"}, [(28, 2, 30), NONE, NONE], r", thread main \(100\)"),
        ({"process": "serve", "thread": "io"}, [NONE, NONE, NONE], ", process serve, thread io"),
        ({"function": "tak"}, [(0, 2, 10), (0, 0, 30), NONE], ", function tak"),
        ({"states": ON_CPU}, [(28, 0, 0), (27, 0, 0), (9, 0, 0)], ", on a CPU"),
        ({"states": OFF_CPU}, [(0, 2, 30), (0, 0, 33), (0, 10, 41)], ", off the CPU"),
        ({"reasons": ("gil",)}, [(0, 0, 20), NONE, NONE], ", reason gil"),
        ({"reasons": ("lock", "disk")}, [(0, 0, 10), (0, 0, 3), (0, 0, 1)], ", reason lock or disk"),
        ({"holds_gil": True}, [(10, 0, 0), (15, 0, 3), NONE], ", holding the GIL"),
        ({"task_states": 2}, [NONE, (0, 0, 3), NONE], ", in state uninterruptible"),
        ({"task_states": 0x602}, [NONE, (0, 0, 3), NONE], ", in state uninterruptible or idle or 0x200"),
        ({"min_block_ns": 20 * MS}, [(0, 0, 20), (0, 0, 30), (0, 0, 40)], ", of 20,000 us or more"),
        ({"min_block_ns": 20 * MS + 1}, [NONE, (0, 0, 30), (0, 0, 40)], ", of 20,000 us or more"),
        ({"hides_idle": True}, [(28, 2, 30), (27, 0, 33), (9, 10, 1)], ", what is not idle"),
        (
            {"thread": "main", "states": OFF_CPU, "window_ns": (0, 21 * MS), "function": "take"},
            [(0, 1, 10), NONE, NONE],
            ", from 0 s to 0.021 s, thread main, function take, off the CPU",
        ),
    ],
)
def test_what_passes(wanted: dict[str, Any], shown: list[tuple[float, ...]], text: str) -> None:
    given = {name: re.compile(value) if isinstance(value, str) else value for name, value in wanted.items()}
    profile = built(mixed(), **given)
    assert shown_ms(profile) == shown
    assert profile.filter_text == text


def test_threads_that_are_not_asked_for_take_no_time_but_end_waits() -> None:
    profile = built(mixed(), thread=re.compile("main"))
    assert [thread.wall_ns for thread in profile.threads] == [60 * MS, 0, 0]
    rows = find_waits(profile).rows
    (lock,) = rows[rows["is_shown"] & (rows["waker"] > 0)]
    assert profile.wakers[lock["waker"] - 1].thread_name == "io"
    before = rows[lock["before"]]
    assert (before["thread"], before["blocked_ns"], before["is_shown"]) == (1, 3 * MS, False)
    assert profile.gil_waits[["thread", "holder", "ns"]].tolist() == [(0, 1, 20 * MS)]


def test_the_accounting_of_a_window_is_of_the_window() -> None:
    profile = built(mixed(), window_ns=(5 * MS, 25 * MS), states=ON_CPU)
    assert [(thread.first_ns, thread.last_ns) for thread in profile.threads] == [(5 * MS, 25 * MS)] * 3
    assert all(thread.accounted_ns == thread.wall_ns == 20 * MS for thread in profile.threads)
    assert dict(profile.threads[0].off_by_reason) == {"lock": 10 * MS}


@pytest.mark.parametrize("seed", range(10))
def test_every_window_is_filled_to_the_nanosecond(seed: int) -> None:
    begin, end = sorted(np.random.default_rng(seed).integers(0, 60 * MS, 2).tolist())
    profile = built(mixed(), window_ns=(begin, end + 1))
    for index in range(3):
        assert int(profile.weights["total_ns"][profile.weights["thread"] == index].sum()) == end + 1 - begin


def test_a_wait_for_the_gil_is_as_long_as_all_of_it() -> None:
    """It comes as a span for each holder."""
    made = mixed()
    made.process(300, gil=[0x7000, 208])
    thread = Story.begin(made, tid=102).run(40 * MS)
    thread.block(5 * MS, 0, 0, FUTEX, flags=WAITS_FOR_GIL, holder=1, args=(0, 0, 0)).run(15 * MS).total()
    profile = built(made, min_block_ns=20 * MS)
    assert profile.spans is not None
    assert int((profile.spans["wait"][profile.spans["reason"] == 1] == 2).sum()) > 1
    assert shown_ms(profile)[0] == (0, 0, 20)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("least_ms", [1, 5, 20, 60])
def test_sums_are_of_waits_that_are_so_long_or_of_others(seed: int, least_ms: int) -> None:
    recording = random_recording(np.random.default_rng(seed)).recording()
    wanted = SpanFilter(min_block_ns=least_ms * MS)
    singly = build_profile(recording, ProfileOptions(with_spans=True, filter=wanted))
    sums = build_profile(recording, ProfileOptions(with_spans=True, adds_up=True, with_pieces=True, filter=wanted))
    for name in ("thread", "stack", "state", "max_ns"):
        assert sums.weights[name].tolist() == singly.weights[name].tolist()
    for name in ("total_ns", "count"):  # those that were chosen at random speak for others in whole numbers
        assert sums.weights[name].tolist() == pytest.approx(singly.weights[name].tolist(), abs=2)
    assert [thread.off_by_reason for thread in sums.threads] == [thread.off_by_reason for thread in singly.threads]
    assert sums.spans is not None and singly.spans is not None and sums.pieces is not None
    for profile in (singly, sums):
        shown = profile.spans["flags"] & SpanFlag.HIDDEN == 0
        assert int(profile.spans["stands_for_ns"][shown].sum()) == int(profile.weights["total_ns"].sum())
    shown = (sums.spans["flags"] & SpanFlag.HIDDEN == 0)[sums.pieces["span"]]
    held = sums.spans["reason"][sums.pieces["span"]] == reason_number("gil")  # one wait comes as many pieces
    assert (sums.pieces["duration_ns"][shown & ~held] >= least_ms * MS).all()


@pytest.mark.parametrize(
    ("text", "found"), [("S", [0x1, 0x2001]), ("D", [0x2, 0x102]), ("I", [0x402]), ("P", [0x40]), ("T", [0x104])]
)
def test_states_as_the_kernel_has_them(text: str, found: list[int]) -> None:
    """include/linux/sched.h: kernel threads without work are TASK_UNINTERRUPTIBLE | TASK_NOLOAD."""
    made = HandMade()
    made.process()
    story = Story.begin(made).run(MS)
    for state in (0x1, 0x2, 0x40, 0x102, 0x104, 0x402, 0x2001):
        story.block(MS, task_state=state).run(MS)
    profile = built(made, (story.total().now_ns - START_NS) / MS, task_states=task_states(text))
    assert profile.spans is not None
    shown = profile.spans[(profile.spans["flags"] == 0) & (profile.spans["state"] == ThreadState.OFF_CPU)]
    assert shown["task_state"].tolist() == found


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        *[("S", 1), ("d", 2), ("S,D", 3), ("SD", 3), ("T", 12)],
        *[("uninterruptible", 2), ("2", 2), ("stopped, S", 5), ("IP", 0x440)],
    ],
)
def test_states(text: str, mask: int) -> None:
    assert task_states(text) == mask


@pytest.mark.parametrize("text", ["Q", "", "S,", "0", "-1", "99999", "sleeping", "²"])
def test_states_there_are_none_of(text: str) -> None:
    with pytest.raises(ValueError, match="is no state"):
        task_states(text)
