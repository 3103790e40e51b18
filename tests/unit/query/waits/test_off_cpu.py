"""Profiles of nothing but waits, and with the stacks of who ended them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.profile.weights import weights_of
from bpfprof.query.waits.off_cpu import with_wakers
from bpfprof.render.formats import FORMATS, Format, RenderOptions
from tests.unit.render.profiles import (
    MS,
    ProfileBuilder,
    collapsed_text,
    hostile_profile,
    native,
    python,
    wait,
    waiting_profile,
)

OPTIONS = RenderOptions()
PUT = [python("work"), python("put"), native("futex_wake")]


def only_waits(profile: Profile) -> Profile:
    """As it is built where nothing else was asked for."""
    assert profile.spans is not None
    spans = profile.spans.copy()
    spans["flags"][spans["state"] != ThreadState.OFF_CPU] |= np.uint8(SpanFlag.HIDDEN)
    shown = spans[spans["flags"] & SpanFlag.HIDDEN == 0]
    return replace(profile, spans=spans, weights=weights_of(shown, shown["stack"]))


def collapsed(profile: Profile, depth: int) -> dict[str, int]:
    lines = collapsed_text(with_wakers(profile, depth), OPTIONS).splitlines()
    return {line.rpartition(" ")[0].split(";", 2)[2]: int(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_every_wait_is_there_and_nothing_else(depth: int) -> None:
    profile = only_waits(waiting_profile())
    made = with_wakers(profile, depth)
    assert set(made.weights["state"].tolist()) == {ThreadState.OFF_CPU}
    for index, thread in enumerate(made.threads):
        assert made.weights["total_ns"][made.weights["thread"] == index].sum() == thread.off_cpu_ns
    gil = made.weights[made.weights["reason"] == 1]
    assert gil["count"].tolist() == [40] and gil["max_ns"].tolist() == [3_200_000]
    assert any("[short waits]" in stack for stack in collapsed(profile, depth))


def test_the_stacks_of_wakers_follow_leaf_first() -> None:
    made = ProfileBuilder()
    waiter, worker = made.thread(1, "main"), made.thread(2, "w;\x1b[31m")
    timer, by_worker = made.waker("timer"), made.thread_waker(worker)
    made.wait(waiter, 1 * MS, [python("get"), wait("lock")], waker=by_worker, waker_stack=PUT)
    made.wait(worker, 5 * MS, [python("work"), wait("sleep")], waker=timer)
    made.wait(waiter, 5 * MS, [python("get"), wait("lock")], waker=by_worker, waker_stack=PUT)
    made.wait(waiter, 2 * MS, [python("get"), wait("lock")])
    profile = made.build()
    get, sleep = "get (train.py);[off-cpu: lock]", "work (train.py);[off-cpu: sleep]"
    woken = f"{get};[woken by thread w:?[31m (2)];futex_wake (libc.so.6);put (train.py);work (train.py)"
    assert collapsed(profile, 0) == {get: 8_000, sleep: 5_000}
    assert collapsed(profile, 1) == {get: 2_000, woken: 6_000, f"{sleep};[woken by timer]": 5_000}
    assert collapsed(profile, 7) == {
        get: 2_000,
        woken: 1_000,
        f"{woken};[woken by timer]": 5_000,
        f"{sleep};[woken by timer]": 5_000,
    }


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
@pytest.mark.parametrize("profile", [waiting_profile, hostile_profile])
def test_every_format_writes_it(known: Format, profile) -> None:
    content = known.render(with_wakers(only_waits(profile()), 3), OPTIONS)
    if isinstance(content, bytes):
        return
    assert all(char.isprintable() for char in content if char != "\n")
