"""The timeline has no gap, whatever part of the time a profile shows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bpfprof.account.timeline import without_gaps

from bpfprof.model.ids import Pid, Tid
from bpfprof.model.profile import TIMELINE_DTYPE, Profile, ThreadTime
from bpfprof.model.samples import HOLDS_GIL
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.render.options import RenderOptions
from bpfprof.render.speedscope import render_speedscope
from tests.unit.recording.hand_made import FUTEX, MS, START_NS, HandMade, Story


def made(**start: object) -> HandMade:
    """30 ms: 10 ms of work, 8 ms asleep and 2 ms runnable, and 10 ms of work holding the GIL."""
    recording = HandMade(start=start, end={"end_ns": START_NS + 33 * MS})
    recording.process()
    work, take = recording.stack((recording.code("work"), 0, 0)), recording.stack((recording.code("take"), 0, 0))
    story = Story.begin(recording, first_ns=START_NS + 3 * MS).run(10 * MS, (5 * MS, work))
    story.block(8 * MS, ready=2 * MS, stack=take, syscall=FUTEX).run(10 * MS, (5 * MS, work)).total()
    recording.samples[1]["flags"] = HOLDS_GIL
    return recording


def shown(profile: Profile) -> list[tuple[str, float, float]]:
    """(leaf, begin, end) of the one thread's rows, those with the same stack together."""
    assert profile.timeline is not None
    found: list[tuple[str, float, float]] = []
    for row in profile.timeline:
        frame = profile.frames[stack[-1]] if (stack := profile.stacks[row["stack"]]) else None
        leaf = (frame.name or frame.kind.name) if frame else ""
        begin, end = int(row["start_ns"]) / MS, int(row["start_ns"] + row["duration_ns"]) / MS
        if found and found[-1][0] == leaf:
            begin = found.pop()[1]
        found.append((leaf, begin, end))
    return found


@pytest.mark.parametrize(
    ("mode", "gil_only", "expected"),
    [
        ("both", False, [("work", 3, 13), ("lock", 13, 21), ("RUNQUEUE", 21, 23), ("work", 23, 33)]),
        ("cpu", False, [("work", 3, 13), ("", 13, 23), ("work", 23, 33)]),
        ("offcpu", False, [("", 3, 13), ("lock", 13, 21), ("RUNQUEUE", 21, 23), ("", 23, 33)]),
        ("both", True, [("", 3, 23), ("work", 23, 33)]),
    ],
)
def test_what_is_not_shown_is_an_empty_stack(
    mode: str, gil_only: bool, expected: list[tuple[str, float, float]]
) -> None:
    options = ProfileOptions(with_spans=True, gil_only=gil_only)
    profile = build_profile(made(mode=mode).recording(), options)
    assert shown(profile) == expected
    (thread,) = json.loads(render_speedscope(profile, RenderOptions()))["profiles"]
    assert (thread["startValue"], thread["endValue"], sum(thread["weights"])) == (3 * MS, 33 * MS, 30 * MS)


def test_a_lost_wait_leaves_the_others_in_their_place() -> None:
    recording = made()
    recording.waits.clear()
    profile = build_profile(recording.recording(), ProfileOptions(with_spans=True))
    assert shown(profile) == [("work", 3, 23), ("", 23, 33)]


def test_a_thread_of_which_nothing_is_shown_has_no_rows() -> None:
    recording = made()
    recording.samples[1]["flags"] = 0
    profile = build_profile(recording.recording(), ProfileOptions(with_spans=True, gil_only=True))
    assert shown(profile) == []


def test_rows_that_overlap_are_cut() -> None:
    thread = ThreadTime(Pid(1), Tid(1), "", "", 10, 50, 40, 0, 0, 0, 0)
    rows = np.zeros(4, TIMELINE_DTYPE)
    rows["stack"], rows["start_ns"], rows["duration_ns"] = (1, 2, 3, 4), (5, 12, 14, 40), (4, 8, 2, 90)
    filled = without_gaps(rows, thread, 7, empty=9)
    assert [(int(row["stack"]), int(row["start_ns"]), int(row["duration_ns"])) for row in filled] == [
        (1, 10, 4),
        (2, 14, 6),
        (9, 20, 20),
        (4, 40, 10),
    ]
    assert (filled["thread"] == 7).all()
