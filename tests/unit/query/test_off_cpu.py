"""Profiles of nothing but waits, and with the stacks of who ended them."""

from __future__ import annotations

import numpy as np
import pytest

from bpfprof.model.profile import ThreadState
from bpfprof.query.off_cpu import off_cpu_profile
from bpfprof.query.wait_filter import WaitFilter
from bpfprof.render.collapsed import render_collapsed
from bpfprof.render.formats import FORMATS, Format
from bpfprof.render.options import RenderOptions
from tests.unit.render.profiles import (
    MS,
    ON_CPU,
    ProfileBuilder,
    empty_profile,
    hostile_profile,
    native,
    python,
    wait,
    waiting_profile,
)

OPTIONS = RenderOptions()


def collapsed(profile, chosen: WaitFilter, depth: int) -> dict[str, int]:
    lines = render_collapsed(off_cpu_profile(profile, chosen, depth), OPTIONS).splitlines()
    return {line.rpartition(" ")[0].split(";", 2)[2]: int(line.rpartition(" ")[2]) for line in lines}


def test_only_waits_are_left_and_all_of_them() -> None:
    profile = waiting_profile()
    made = off_cpu_profile(profile, WaitFilter())
    assert set(made.weights["state"].tolist()) == {ThreadState.OFF_CPU}
    for index, thread in enumerate(made.threads):
        assert made.weights["total_ns"][made.weights["thread"] == index].sum() == thread.off_cpu_ns
    gil = next(row for row in made.weights if profile.frames[profile.stacks[row["stack"]][-1]].name == "gil")
    assert gil["count"] == 40 and gil["max_ns"] == 3_200_000


def test_filters_leave_out_short_waits() -> None:
    assert any("[short waits]" in stack for stack in collapsed(waiting_profile(), WaitFilter(hides_idle=True), 0))
    found = collapsed(waiting_profile(), WaitFilter(min_block_ns=1_000 * MS, hides_idle=True), 0)
    assert found == {"read (libc.so.6);[off-cpu: disk]": 1_500_000}


def test_the_stacks_of_wakers_follow_leaf_first() -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(1, "main"), made.thread(2, "w;\x1b[31m")
    timer, by_worker = made.waker("timer"), made.thread_waker(worker)
    slept = made.wait(worker, 5 * MS, [python("work"), wait("sleep")], waker=timer)
    put = [python("work"), python("put"), native("futex_wake")]
    made.wait(waiter, 5 * MS, [python("get"), wait("lock")], waker=by_worker, waker_stack=put, before=slept)
    made.wait(waiter, 1 * MS, [python("get"), wait("lock")], waker=by_worker, waker_stack=put)
    made.wait(waiter, 2 * MS, [python("get"), wait("lock")])
    profile = made.build()
    get, sleep = "get (train.py);[off-cpu: lock]", "work (train.py);[off-cpu: sleep]"
    woken = f"{get};[woken by thread w:?[31m (2)];futex_wake (libc.so.6);put (train.py);work (train.py)"
    assert collapsed(profile, WaitFilter(), 0) == {get: 8_000, sleep: 5_000}
    assert collapsed(profile, WaitFilter(), 1) == {get: 2_000, woken: 6_000, f"{sleep};[woken by timer]": 5_000}
    assert collapsed(profile, WaitFilter(), 7) == {
        get: 2_000,
        woken: 1_000,
        f"{woken};[woken by timer]": 5_000,
        f"{sleep};[woken by timer]": 5_000,
    }


def test_the_timeline_has_no_gap() -> None:
    made = off_cpu_profile(waiting_profile(), WaitFilter(min_block_ns=MS))
    assert made.timeline is not None
    for index, thread in enumerate(made.threads):
        rows = made.timeline[made.timeline["thread"] == index]
        ends = rows["start_ns"] + rows["duration_ns"]
        assert rows["start_ns"][0] == thread.first_ns and ends[-1] == thread.last_ns
        assert (rows["start_ns"][1:] == ends[:-1]).all()
        waits = rows[rows["state"] == ThreadState.OFF_CPU]
        all_ns = made.weights["total_ns"][made.weights["thread"] == index].sum()
        assert waits["duration_ns"].sum() == all_ns
        assert all(made.stacks[stack] == () for stack in rows["stack"][rows["state"] == ON_CPU])


def test_waits_that_overlap_in_a_damaged_table_stay_within_the_thread() -> None:
    profile = waiting_profile()
    assert profile.waits is not None
    profile.waits.rows["start_ns"][::3] = 2**61
    profile.waits.rows["blocked_ns"][::5] = 2**61
    made = off_cpu_profile(profile, WaitFilter(), 2)
    assert made.timeline is not None
    ends = (made.timeline["start_ns"] + made.timeline["duration_ns"]).astype(np.int64)
    assert (ends <= np.array([thread.last_ns for thread in made.threads])[made.timeline["thread"]]).all()


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
@pytest.mark.parametrize("profile", [waiting_profile, hostile_profile])
def test_every_format_writes_it(known: Format, profile) -> None:
    content = known.render(off_cpu_profile(profile(), WaitFilter(), 3), OPTIONS)
    assert isinstance(content, str) and all(char.isprintable() for char in content if char != "\n")


def test_a_profile_without_waits_is_refused() -> None:
    with pytest.raises(ValueError, match="built with its waits"):
        off_cpu_profile(empty_profile(), WaitFilter())
