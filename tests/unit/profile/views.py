"""Profiles of recordings made by hand, checked as they are built, and what they hold, as tests like to look at it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import WEIGHT_DTYPE, Profile
from bpfprof.model.spans import SPAN_DTYPE, SpanFlag, ThreadState
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions, SpanFilter
from tests.unit.account.invariants import assert_covers
from tests.unit.recording.hand_made import MS, START_NS, HandMade

Spent = dict[tuple[str, ...], float]


def built(made: HandMade, end_ms: float | None = None, is_damaged: bool = False, **wanted: Any) -> Profile:
    """Of a recording that ends after so long (None: as it says, or without an end); `wanted`: see SpanFilter."""
    if end_ms is not None:
        made.end = {"end_ns": START_NS + round(end_ms * MS), **(made.end or {})}
    recording = made.recording()
    assert_covers(recording, is_damaged)
    profile = build_profile(recording, ProfileOptions(with_spans=True, filter=SpanFilter(**wanted)))
    assert_adds_up(profile)
    if not wanted and not is_damaged:
        assert all(thread.accounted_ns == thread.wall_ns for thread in profile.threads)
    return profile


def assert_adds_up(profile: Profile) -> None:
    """Threads and weights are the sums of the spans; each of a thread, stack, state and reason has one weight."""
    spans, weights = profile.spans, profile.weights
    assert spans is not None and spans.dtype == SPAN_DTYPE and weights.dtype == WEIGHT_DTYPE
    assert np.array_equal(np.lexsort((spans["start_ns"], spans["thread"])), np.arange(len(spans)))
    for index, thread in enumerate(profile.threads):
        own, mine = spans[spans["thread"] == index], weights[weights["thread"] == index]
        shown = own[own["flags"] & SpanFlag.HIDDEN == 0]
        for state in ThreadState:
            assert mine["total_ns"][mine["state"] == state].sum() == _sum(shown, "stands_for_ns", state)
        if thread.wall_ns:
            in_states = [_sum(own, "duration_ns", state) for state in list(ThreadState)[:3]]
            assert [thread.on_cpu_ns, thread.runqueue_ns, thread.off_cpu_ns] == in_states
            assert own["duration_ns"].sum() == thread.wall_ns
        assert sum(ns for _, ns in thread.off_by_reason) == thread.off_cpu_ns
        gil = shown[(shown["state"] == ThreadState.OFF_CPU) & (shown["reason"] == 1)]
        assert profile.gil_waits["ns"][profile.gil_waits["thread"] == index].sum() == gil["stands_for_ns"].sum()
    assert len(np.unique(weights[["thread", "stack", "state", "reason"]])) == len(weights)


def _sum(spans: np.ndarray[Any, Any], column: str, state: ThreadState) -> int:
    return int(spans[column][spans["state"] == state].sum())


def spent_ms(profile: Profile, thread: int = 0, state: ThreadState | None = None) -> Spent:
    """Stack as text, root first -> milliseconds of one thread."""
    found: Spent = {}
    for weight in profile.weights[profile.weights["thread"] == thread]:
        if state is None or weight["state"] == state:
            stack = tuple(text(profile, number) for number in profile.stacks[weight["stack"]])
            found[stack] = found.get(stack, 0) + int(weight["total_ns"]) / MS
    return found


def shown_ms(profile: Profile, thread: int = 0) -> list[tuple[str, float, float]]:
    """(last frame, start, duration) in the order of time, equal neighbours as one; what is not shown: ""."""
    assert profile.spans is not None
    found: list[tuple[str, int, int]] = []
    for row in profile.spans[profile.spans["thread"] == thread]:
        stack = () if row["flags"] & SpanFlag.HIDDEN else profile.stacks[row["stack"]]
        leaf = text(profile, stack[-1]) if stack else ""
        begin_ns, before_ns = found.pop()[1:] if found and found[-1][0] == leaf else (int(row["start_ns"]), 0)
        found.append((leaf, begin_ns, before_ns + int(row["duration_ns"])))
    return [(leaf, begin_ns / MS, ns / MS) for leaf, begin_ns, ns in found]


def text(profile: Profile, number: int) -> str:
    frame = profile.frames[number]
    return f"{frame.kind.name.lower()} {frame.name}".strip() if frame.kind != FrameKind.PYTHON else frame.name
