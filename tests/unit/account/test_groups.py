"""A thread with very many waits comes in stretches of its time, which together are what it is as a whole."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bpfprof.account import groups
from bpfprof.account.added_up import AddingSource
from bpfprof.account.estimate import SUM_DTYPE, shared_out
from bpfprof.model.spans import ThreadState
from bpfprof.recording.contents import Recording
from bpfprof.stacks.stitch import StackSource
from tests.unit.account.invariants import assert_covers
from tests.unit.account.test_spans import damaged_recording, random_recording
from tests.unit.recording.hand_made import MS, HandMade, Story

Sums = Counter[tuple[int, int, int]]


def source_of(recording: Recording) -> AddingSource:
    return AddingSource(recording, StackSource(recording).statuses)


def sums_of(source: AddingSource) -> tuple[Sums, Sums]:
    """(nanoseconds, counts) by thread, state and reason."""
    ns, counts = Sums(), Sums()
    for group in source.groups:
        for span in source.added_up(group).spans:
            key = int(span["thread"]), int(span["state"]), int(span["reason"])
            ns[key] += int(span["stands_for_ns"])
            counts[key] += int(span["count"]) if span["state"] == ThreadState.OFF_CPU else 0
    return ns, counts


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("has_end", [True, False])
def test_stretches_are_the_whole(seed: int, has_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = random_recording(np.random.default_rng(seed))
    made.end = made.end if has_end else {}
    recording = made.recording()
    whole = source_of(recording)
    ns, counts = sums_of(whole)
    monkeypatch.setattr(groups, "_ROWS", 1)
    monkeypatch.setattr(groups, "_STRETCH_WAITS", 5)
    assert_covers(recording, is_damaged=not has_end)
    cut = source_of(recording)
    assert len(cut.groups) > len(recording.threads)
    assert (cut.overlaps_ns() == whole.overlaps_ns()).all()
    cut_ns, cut_counts = sums_of(cut)
    # What was only added up is shared out in whole nanoseconds and waits.
    count = len(cut.groups)
    for found, expected, tolerance in ((cut_ns, ns, count), (cut_counts, counts, count)):
        assert all(abs(found[key] - expected[key]) <= tolerance for key in found.keys() | expected.keys())
    for state in ThreadState:
        assert sum(ns[key] for key in ns if key[1] == state) == pytest.approx(
            sum(cut_ns[key] for key in cut_ns if key[1] == state), abs=count
        )


@pytest.mark.parametrize("seed", range(10))
def test_of_damaged_rows_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_STRETCH_WAITS", 3)
    monkeypatch.setattr(groups, "_ROWS", 1)
    assert_covers(damaged_recording(np.random.default_rng(seed)).recording(), is_damaged=True)


def test_a_stretch_has_its_own_waits_samples_and_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HandMade()
    story, stack = Story.begin(made, process=made.process()), made.stack((made.code("f"), 0, 0))
    for turn in range(4):
        story.run((turn + 1) * MS, (0, stack)).block(5 * MS)
    story.run(MS).total()
    made.end = {"end_ns": story.now_ns}
    monkeypatch.setattr(groups, "_STRETCH_WAITS", 2)
    first, last = source_of(made.recording()).groups
    assert (first.threads, first.stretch, last.threads, last.stretch) == (range(1), 0, range(1), 1)
    assert (first.waits, last.waits) == (slice(0, 2), slice(2, 4))
    assert (first.samples, last.samples) == (slice(0, 2), slice(2, 4))
    assert first.last_ns.tolist() == last.first_ns.tolist()
    assert (last.first_ns - first.first_ns).tolist() == [13 * MS]
    assert (first.ran_until_ns.tolist(), last.ran_until_ns.tolist()) == ([3 * MS], [11 * MS])


def test_sums_go_where_there_is_time_for_them() -> None:
    sums = np.zeros(2, SUM_DTYPE)
    sums["ns"], sums["count"], sums["reason"] = (600, 300), (60, 3), (1, 2)
    shares = shared_out(np.array([0, 500, 500]), sums, 100)
    assert [preempted.tolist() for _, preempted in shares] == [[0], [50], [50]]
    assert [(its["ns"].tolist(), its["count"].tolist()) for its, _ in shares] == [
        ([], []),
        ([300, 150], [30, 2]),
        ([300, 150], [30, 1]),
    ]
    # Time that there is less of than of them; of more, all that is left over is not theirs.
    for left, expected in (([0, 100], [0, 900]), ([800, 800], [450, 450])):
        found = [int(its["ns"].sum()) for its, _ in shared_out(np.array(left), sums, 0)]
        assert found == expected
